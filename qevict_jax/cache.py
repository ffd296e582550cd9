# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The tiered KV cache as one frozen pytree of static shapes, stacked over layers.

Slots stand before heads, and heads, key/value and channels are merged in one last axis (``K 2 D``): writing a window
or a token copies nothing, a window is one contiguous row, and sharding the last axis shards by heads. LOG.md has what
XLA:TPU does with this and other layouts. 16-bit floats are stored as bits (`pallas_kernels.float_bits`).
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels.float_bits import stored_dtype, to_bits
from pallas_kernels.packing import planes
from pallas_kernels.quantized_windows import QuantizedWindows
from qevict_jax.types import KVShape


@dataclass(frozen=True)
class TierLayout:
    """Every static number of a tiered cache.

    Attributes:
        shape: layers, heads, head_dim and dtype.
        window: W.
        sink: tokens protected at the start.
        recent: newest tokens protected at least.
        ring: R, slots of the ring of recent tokens.
        local_rows: rows of the buffer that holds ring and sinks, at least R + sink.
        full_windows: F, slots of the full-precision tier.
        quant_windows: windows the quantized tier may hold.
        code_slots: Q, slots for codes; with ``ranked`` also those of promoted windows, which lie dormant.
        scalar_row: P, numbers in a row of ``QuantizedWindows.scalars``.
        bits: bits of a code.
        param_bits: bits of a key parameter.
        ranked: residency "ranked" rather than "exact".
        event_mass: the ranking keeps the mass since the last event beside the score.
    """

    shape: KVShape
    window: int
    sink: int
    recent: int
    ring: int
    local_rows: int
    full_windows: int
    quant_windows: int
    code_slots: int
    scalar_row: int
    bits: int
    param_bits: int
    ranked: bool
    event_mass: bool

    @property
    def row(self) -> int:
        """Elements of one token: ``K*2*D``."""
        return self.shape.kv_heads * 2 * self.shape.head_dim

    @property
    def ring_windows(self) -> int:
        """Windows in the ring."""
        return self.ring // self.window


class PerWindow(NamedTuple):
    """One float32 number for every window in the cache, by where the window is."""

    ring: Float[Array, "L B RW"]
    full: Float[Array, "L B F"] | None
    quant: Float[Array, "L B Q"] | None


@no_type_check  # a pytree also holds shapes, specs and NumPy arrays
@struct.dataclass
class TieredCache:
    """The cache of a batch. Window j holds positions ``sink + j*W .. sink + (j+1)*W - 1``.

    Attributes:
        local: ``[L, B, local_rows, K*2*D]``. Position p >= sink lies in row ``(p - sink) % R`` and position p < sink
            in row ``R + p``, so that every window that ages is one aligned slice. Keys after RoPE.
        full: ``[L, B, F, W, K*2*D]``, or None if F is 0. Keys after RoPE.
        full_window: window index in each full slot, -1 if empty.
        codes: quantized windows ``[L, B, Q, ...]``, or None if Q is 0. Keys before RoPE and bias.
        code_window: window index in each code slot, -1 if empty.
        dormant: codes of a window that now sits in a full slot; only with ``ranked``.
        score: importance of every window.
        mass: attention since the last event, if the ranking wants it.
        length: n, tokens seen by each row.
        aged: windows of each row that have left the ring.
        layout: the static numbers.
    """

    local: Shaped[Array, "L B rows K_2_D"]
    full: Shaped[Array, "L B F W K_2_D"] | None
    full_window: Int[Array, "L B F"] | None
    codes: QuantizedWindows | None
    code_window: Int[Array, "L B Q"] | None
    dormant: Bool[Array, "L B Q"] | None
    score: PerWindow
    mass: PerWindow | None
    length: Int[Array, "B"]
    aged: Int[Array, "B"]
    layout: TierLayout = struct.field(pytree_node=False)


def abstract_cache(layout: TierLayout, batch: int) -> TieredCache:
    """The cache as shapes and dtypes: what `init_cache` fills and what the byte accounting adds up."""
    layers, kv_heads, head_dim = layout.shape.layers, layout.shape.kv_heads, layout.shape.head_dim
    kv_dtype = stored_dtype(layout.shape.dtype)

    def array(dtype, *axes: int) -> Any:
        return jax.ShapeDtypeStruct((layers, batch, *axes), dtype)

    def per_window() -> PerWindow:
        return PerWindow(
            ring=array(jnp.float32, layout.ring_windows),
            full=array(jnp.float32, slots) if slots else None,
            quant=array(jnp.float32, codes) if codes else None,
        )

    slots, codes = layout.full_windows, layout.code_slots
    per_row: Any = jax.ShapeDtypeStruct((batch,), jnp.int32)
    quantized = None
    if codes:
        word = jnp.uint16 if layout.param_bits == 8 else jnp.uint32
        quantized = QuantizedWindows(
            codes=tuple(
                array(plane.dtype, codes, plane.words * layout.row) for plane in planes(layout.bits, layout.window)
            ),
            key_params=array(word, codes, kv_heads * head_dim),
            scalars=array(jnp.uint16, codes, layout.scalar_row),
        )
    return TieredCache(
        local=array(kv_dtype, layout.local_rows, layout.row),
        full=array(kv_dtype, slots, layout.window, layout.row) if slots else None,
        full_window=array(jnp.int32, slots) if slots else None,
        codes=quantized,
        code_window=array(jnp.int32, codes) if codes else None,
        dormant=array(jnp.bool_, codes) if codes and layout.ranked else None,
        score=per_window(),
        mass=per_window() if layout.event_mass else None,
        length=per_row,
        aged=per_row,
        layout=layout,
    )


def init_cache(layout: TierLayout, batch: int) -> TieredCache:
    """An empty cache: zeros, and no window in any slot."""
    cache = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), abstract_cache(layout, batch))
    return replace(
        cache,
        full_window=None if cache.full_window is None else cache.full_window - 1,
        code_window=None if cache.code_window is None else cache.code_window - 1,
    )


def nbytes(cache: object) -> int:
    """Bytes of all arrays, real or abstract, of a pytree."""
    return sum(x.size * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(cache))


def local_row(layout: TierLayout, positions: Int[Array, "*n"]) -> Int[Array, "*n"]:
    """Row of ``local`` in which a position lies."""
    return jnp.where(positions < layout.sink, layout.ring + positions, (positions - layout.sink) % layout.ring)


def local_positions(layout: TierLayout, aged: Int[Array, "B"]) -> Int[Array, "B rows"]:
    """Position that belongs in each row of ``local`` while ``aged`` windows have left the ring.

    Rows that lie beyond the newest token show a position not yet reached, so that ``position <= own position`` is the
    whole mask; rows of padding show the largest int32.

        W = 4, R = 12, sink = 2, aged = 1:   rows   0  1  2  3 | 4 5 6 7 | 8 9 10 11 | 12 13
                                             shows 14 15 16 17 | 6 7 8 9 | 10 ..  13 |  0  1
    """
    base = aged[:, None] * layout.window
    slots = jnp.arange(layout.ring, dtype=jnp.int32)
    ring = layout.sink + base + (slots - base) % layout.ring
    rest = jnp.arange(layout.local_rows - layout.ring, dtype=jnp.int32)
    rest = jnp.where(rest < layout.sink, rest, jnp.iinfo(jnp.int32).max)
    return jnp.concatenate([ring, jnp.broadcast_to(rest, (aged.shape[0], rest.shape[0]))], axis=1)


def append_tokens(
    local: Shaped[Array, "L B rows K_2_D"],
    layout: TierLayout,
    layer: Int[Array, ""],
    tokens: Float[Array, "B T K_2_D"],
    positions: Int[Array, "B T"],
    valid: Bool[Array, "B T"],
) -> Shaped[Array, "L B rows K_2_D"]:
    """Writes the keys and values of new tokens into their rows; those that are not valid are dropped."""
    rows = jnp.where(valid, local_row(layout, positions), layout.local_rows)
    batch = jnp.arange(tokens.shape[0])[:, None]
    return local.at[layer, batch, rows].set(to_bits(tokens, layout.shape.dtype), mode="drop")
