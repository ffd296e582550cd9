# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""ZipCache's parameters, its cache and what it costs; `policies.zipcache` works on it."""

from dataclasses import dataclass, replace
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.float_bits import stored_dtype
from pallas_kernels.packing import BITS
from qevict_jax.cache import nbytes
from qevict_jax.checks import check_integer, check_number, check_one_of
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan
from qevict_jax.quantizers.channel_separable import SeparableTokens
from qevict_jax.quantizers.code_rows import row_planes
from qevict_jax.types import KVShape, QEvictError

_EVENT_STEPS = 8


@dataclass(frozen=True)
class Options:
    """Parameters of ZipCache.

    Attributes:
        important: share of the tokens that get ``high_bits``, a whole number of percent between 0 and 1.
        high_bits: bits of a code of salient tokens.
        low_bits: bits of the others.
        gap: new tokens that are quantized together.
    """

    important: float = 0.7
    high_bits: int = 4
    low_bits: int = 2
    gap: int = 100

    def __post_init__(self) -> None:
        check_number("important", self.important, 0.01, 0.99)
        if abs(self.important * 100 - self.percent) > 1e-6:
            raise QEvictError(f"important={self.important} must be a whole number of percent, e.g. 0.7")
        check_one_of("high_bits", self.high_bits, BITS)
        check_one_of("low_bits", self.low_bits, BITS)
        check_integer("gap", self.gap, 1)

    @property
    def percent(self) -> int:
        """``important`` in percent."""
        return round(self.important * 100)


@dataclass(frozen=True)
class ZipCacheLayout:
    """Static numbers of a cache.

    Attributes:
        shape: layers, heads, head_dim and dtype.
        options: parameters.
        ring: slots for new tokens.
        slots: slots of salient tokens, and of the others.
    """

    shape: KVShape
    options: Options
    ring: int
    slots: tuple[int, int]

    @property
    def event_steps(self) -> int:
        """Decode steps between events."""
        return min(_EVENT_STEPS, self.options.gap)

    @property
    def bits(self) -> tuple[int, int]:
        """Bits of both classes."""
        return self.options.high_bits, self.options.low_bits

    def used(self, stored: Any) -> tuple[Any, Any]:
        """Slots of both classes that so many quantized tokens take, the salient ones rounded up."""
        high = -(-stored * self.options.percent // 100)
        return high, stored - high


@no_type_check  # a pytree also holds shapes, specs and NumPy arrays
@struct.dataclass
class ZipCache:
    """Positions below ``stored`` are codes, those from there on lie in the ring.

    Attributes:
        ring: ``[L, B, ring, K*2*D]`` (`policies.recent_ring`).
        saliency: ``[L, B, K, ring]`` attention of the newest query to each token of the ring.
        classes: salient tokens and the others, ``[L, B, ...]`` each.
        length: n, tokens seen by each row.
        stored: tokens of each row that are codes.
        layout: the static numbers.
    """

    ring: Shaped[Array, "L B ring K_2_D"]
    saliency: Float[Array, "L B K ring"]
    classes: tuple[SeparableTokens, SeparableTokens]
    length: Int[Array, "B"]
    stored: Int[Array, "B"]
    layout: ZipCacheLayout = struct.field(pytree_node=False)


def abstract_cache(layout: ZipCacheLayout, batch: int) -> ZipCache:
    """The cache as shapes and dtypes."""
    shape = layout.shape
    heads, head_dim = shape.kv_heads, shape.head_dim

    def array(dtype: Any, *axes: int) -> Any:
        return jax.ShapeDtypeStruct((shape.layers, batch, *axes), dtype)

    def tokens(slots: int, bits: int) -> SeparableTokens:
        return SeparableTokens(
            codes=tuple(array(dtype, slots, heads * 2 * words) for words, dtype in row_planes(bits, head_dim)),
            channels=array(jnp.uint16, 3 * heads * head_dim),
            slots=array(jnp.uint16, 2 * slots),
        )

    high, low = (tokens(slots, bits) for slots, bits in zip(layout.slots, layout.bits, strict=True))
    per_row: Any = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return ZipCache(
        ring=array(stored_dtype(shape.dtype), layout.ring, heads * 2 * head_dim),
        saliency=array(jnp.float32, heads, layout.ring),
        classes=(high, low),
        length=per_row,
        stored=per_row,
        layout=layout,
    )


def plan_zipcache(shape: KVShape, config: CacheConfig, options: Options, total_len: int, multiple: int) -> CachePlan:
    """Room for ``total_len`` tokens; the operating point decides the bytes."""
    steps = min(_EVENT_STEPS, options.gap)
    layout = ZipCacheLayout(shape, options, -(-min(total_len, options.gap + steps - 1) // multiple) * multiple, (0, 0))
    high, low = layout.used(total_len)
    layout = replace(layout, slots=(max(1, high), max(1, low)))
    cache = abstract_cache(layout, 1)
    parts = (
        ("ring", nbytes(cache.ring)),
        ("codes", nbytes([tokens.codes for tokens in cache.classes])),
        ("channel parameters", nbytes([tokens.channels for tokens in cache.classes])),
        ("slot parameters", nbytes([tokens.slots for tokens in cache.classes])),
        ("saliency", nbytes(cache.saliency)),
        ("length", nbytes((cache.length, cache.stored))),
    )
    capacities = (
        ("ring of new tokens", layout.ring),
        *((f"INT{bits} tokens", slots) for bits, slots in zip(layout.bits, layout.slots, strict=True)),
    )
    return CachePlan(config, total_len, layout, nbytes(cache), shape.bytes_per_token * total_len, parts, capacities)
