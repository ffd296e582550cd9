# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""StreamingLLM: the first tokens and the newest, by position alone (arXiv:2309.17453, mit-han-lab/streaming-llm).

At every step a query sees the ``sink`` first tokens and the R newest, itself included, in all heads and layers.
Positions are those inside the cache, as in the original: seen from the newest tokens the sinks lie right before the
oldest kept one. Only their distance changes, so keys stay as they are and the sinks are looked at with a query that is
turned back by as many positions as were dropped. Deviation: the prompt's own pass is dense, as with every policy here.
"""

from dataclasses import dataclass, replace
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Int8, Shaped

from pallas_kernels.float_bits import from_bits, stored_dtype, to_bits
from pallas_kernels.layer_slice import layer_slice
from pallas_kernels.rope import cos_sin, rotate
from qevict_jax.cache import nbytes
from qevict_jax.checks import check_integer, check_one_of
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan, budget_in_bytes, too_small
from qevict_jax.policies.base import Prompt, Tier
from qevict_jax.policies.full import merge_kv
from qevict_jax.policies.token_attention import Part, attend
from qevict_jax.types import KVShape
from qevict_jax.windows import KeyTransform

_CHUNK = 8  # tokens that may come at once; as many must be kept


@dataclass(frozen=True)
class Options:
    """Parameters of StreamingLLM.

    Attributes:
        sink: first tokens that stay; 4 in the paper and the original.
        positions: "cache" (inside the cache; the paper) or "original" (in the text; kvpress).
    """

    sink: int = 4
    positions: str = "cache"

    def __post_init__(self) -> None:
        check_integer("sink", self.sink, 0)
        check_one_of("positions", self.positions, ("cache", "original"))


@dataclass(frozen=True)
class RingLayout:
    """Static numbers: the shape, sinks, R, and whether positions are those inside the cache."""

    shape: KVShape
    sink: int
    ring: int
    cache_positions: bool


@no_type_check  # a pytree also holds shapes, specs and NumPy arrays
@struct.dataclass
class SinkAndRing:
    """Position p < sink lies in row p, later ones in row ``sink + (p - sink) % R``; keys after RoPE.

    ``tokens`` is ``[L, B, sink + R, K*2*D]``, ``length`` ``[B]``, ``layout`` static.
    """

    tokens: Shaped[Array, "L B rows K_2_D"]
    length: Int[Array, "B"]
    layout: RingLayout = struct.field(pytree_node=False)


def abstract_ring(layout: RingLayout, batch: int) -> SinkAndRing:
    """The cache as shapes and dtypes."""
    shape = layout.shape
    axes = (shape.layers, batch, layout.sink + layout.ring, shape.kv_heads * 2 * shape.head_dim)
    tokens: Any = jax.ShapeDtypeStruct(axes, stored_dtype(shape.dtype))
    length: Any = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return SinkAndRing(tokens, length, layout)


@dataclass(frozen=True)
class StreamingLLM:
    """The policy. Nothing is scored, and events have nothing to do."""

    plan: CachePlan
    event_steps: int = _CHUNK

    @property
    def layout(self) -> RingLayout:
        """Capacities."""
        return self.plan.layout

    def init(self, batch: int) -> SinkAndRing:
        """An empty cache."""
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), abstract_ring(self.layout, batch))

    def admit(self, cache: SinkAndRing, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform) -> SinkAndRing:
        """Keeps the first and the newest tokens of a prompt."""
        position, there = self._positions(prompt.length)
        index = jnp.clip(position, 0, prompt.k.shape[1] - 1)[..., None]
        kept = jnp.take_along_axis(merge_kv(prompt.k, prompt.v), index, axis=1)
        kept = to_bits(jnp.where(there[..., None], kept.astype(jnp.float32), 0.0), self.layout.shape.dtype)
        return replace(cache, tokens=cache.tokens.at[layer].set(kept))

    def admitted(self, cache: SinkAndRing, length: Int[Array, "B"]) -> SinkAndRing:
        """Sets the lengths."""
        return replace(cache, length=length)

    def attend(
        self,
        cache: SinkAndRing,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[SinkAndRing, Float[Array, "B T H D"], None]:
        """Attends to what each query may see of the old tokens and of the new ones, then writes these over the old."""
        layout = self.layout
        batch, count = valid.shape
        kv_heads, dtype = layout.shape.kv_heads, layout.shape.dtype
        at = cache.length[:, None] + jnp.arange(count, dtype=jnp.int32)
        old_position, there = self._positions(cache.length)
        bits = to_bits(tokens, dtype)
        old, new = (
            from_bits(x, dtype).reshape(batch, -1, kv_heads, 2, layout.shape.head_dim)
            for x in (layer_slice(cache.tokens, layer), bits)
        )

        def seen(position: Int[Array, "B n"], there: Bool[Array, "B n"]) -> Bool[Array, "B T K n"]:
            position, query = position[:, None], at[..., None]
            kept = (position < layout.sink) | (position > query - layout.ring)
            mask = (kept & (position <= query) & there[:, None] & valid[..., None])[:, :, None]
            return jnp.broadcast_to(mask, (batch, count, kv_heads, mask.shape[-1]))

        sink_q = q
        if layout.cache_positions:
            dropped = jnp.maximum(0, at - layout.ring + 1 - layout.sink)
            cos, sin = cos_sin(dropped, transform.inv_freq)
            sink_q = rotate(q, cos, -sin)
        sink = layout.sink
        parts = [
            Part(old[:, :sink, :, 0], old[:, :sink, :, 1], seen(old_position[:, :sink], there[:, :sink]), sink_q),
            Part(old[:, sink:, :, 0], old[:, sink:, :, 1], seen(old_position[:, sink:], there[:, sink:])),
            Part(new[..., 0, :], new[..., 1, :], seen(at, valid)),  # a sink that is new has lost nothing yet
        ]
        out, _ = attend(q, parts if sink else parts[1:])
        rows = jnp.where(at < sink, at, sink + (at - sink) % layout.ring)
        rows = jnp.where(valid, rows, sink + layout.ring)
        stack = cache.tokens.at[layer, jnp.arange(batch)[:, None], rows].set(bits, mode="drop")
        return replace(cache, tokens=stack), out, None

    def observe(self, cache: SinkAndRing, seen: None, count: Int[Array, "B"]) -> SinkAndRing:
        """Advances the lengths."""
        return replace(cache, length=cache.length + count)

    def route(self, cache: SinkAndRing, transform: KeyTransform) -> SinkAndRing:
        """Nothing moves: a new token has already taken the place of the oldest."""
        return cache

    def placement(self, cache: SinkAndRing) -> Int8[Array, "L B 1 S"]:
        """First, newest, or evicted."""
        at = jnp.arange(self.plan.total_len, dtype=jnp.int32)
        length = cache.length[:, None]
        tier = jnp.where(at >= length - self.layout.ring, Tier.RECENT, Tier.EVICTED)
        tier = jnp.where(at < self.layout.sink, Tier.SINK, tier)
        tier = jnp.where(at < length, tier, Tier.UNSEEN).astype(jnp.int8)
        return jnp.broadcast_to(tier[None, :, None], (self.layout.shape.layers, tier.shape[0], 1, at.shape[0]))

    def _positions(self, length: Int[Array, "B"]) -> tuple[Int[Array, "B rows"], Bool[Array, "B rows"]]:
        """Position of the token in every row of a cache that has seen so many, and whether there is one."""
        sink, ring = self.layout.sink, self.layout.ring
        newest = length[:, None] - 1 - sink  # counted from the first that is no sink
        rows = jnp.arange(ring, dtype=jnp.int32)
        after = newest - (newest - rows) % ring
        first = jnp.broadcast_to(jnp.arange(sink, dtype=jnp.int32), (length.shape[0], sink))
        there = jnp.concatenate([first < length[:, None], after >= 0], axis=1)
        return jnp.concatenate([first, sink + after], axis=1), there


def plan_streaming_llm(
    shape: KVShape, config: CacheConfig, options: Options, total_len: int, slot_multiple: int
) -> CachePlan:
    """As many tokens as the budget holds."""
    full_bytes = shape.bytes_per_token * total_len
    budget = budget_in_bytes(config, full_bytes)
    sink = options.sink

    def rounded(ring: int, up: bool) -> int:
        return ((sink + ring + (slot_multiple - 1 if up else 0)) // slot_multiple) * slot_multiple - sink

    def layout(ring: int) -> RingLayout:
        return RingLayout(shape, sink, ring, options.positions == "cache")

    def size(ring: int) -> int:
        return nbytes(abstract_ring(layout(ring), 1))

    least = rounded(_CHUNK, up=True)
    if size(least) > budget:
        raise too_small(budget, full_bytes, f"{sink} sinks and {least} new tokens", size(least))
    most = rounded(max(_CHUNK, total_len - sink), up=True)
    ring = min(most, rounded(int((budget - size(0)) // shape.bytes_per_token), up=False))
    parts = (
        ("sinks", sink * shape.bytes_per_token),
        ("recent tokens", ring * shape.bytes_per_token),
        ("length", size(ring) - (sink + ring) * shape.bytes_per_token),
    )
    capacities = (("sink tokens", sink), ("recent tokens", ring))
    return CachePlan(config, total_len, layout(ring), size(ring), full_bytes, parts, capacities)


def make_streaming_llm(plan: CachePlan, shape: KVShape, options: Options) -> StreamingLLM:
    """The policy."""
    return StreamingLLM(plan)
