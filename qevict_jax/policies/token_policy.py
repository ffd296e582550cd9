# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Token-level eviction behind the policy interface: a `Method` decides, this file stores, attends and moves.

The methods were published for one cut after the prompt, with a cache that then grows. Under a budget of bytes at a
static capacity it cannot grow, so here generation goes on the same way: new tokens enter the ring, every step's
attention refreshes the scores, and every `EVENT_STEPS` steps an event lets the oldest go from the ring and keeps the
best of them and of what is stored, by the method's own rule.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int8, Shaped

from pallas_kernels.float_bits import from_bits, to_bits
from pallas_kernels.layer_slice import layer_slice
from qevict_jax.head_split import ONE_DEVICE, HeadSplit
from qevict_jax.plan import CachePlan
from qevict_jax.policies.base import Prompt, Tier
from qevict_jax.policies.full import merge_kv
from qevict_jax.policies.layer_segments import group_by_layer
from qevict_jax.policies.recent_ring import append, fill_ring, leaving, ring_positions
from qevict_jax.policies.token_attention import Part, attend
from qevict_jax.policies.token_method import Candidates, Method
from qevict_jax.policies.token_rows import RowLayout, Segment, TokenRows, init_rows, read, segment
from qevict_jax.token_selection import places
from qevict_jax.windows import KeyTransform

EVENT_STEPS = 8


class Arrivals(NamedTuple):
    """Tokens of single heads that want a row: key and value, position, score, head, layer; and which there are."""

    tokens: Shaped[Array, "B n 2_D"]
    position: Int[Array, "B n"]
    score: Float[Array, "B n"]
    weight: Float[Array, "B n"] | None
    pinned: Bool[Array, "B n"]
    head: Int[Array, "B n"]
    valid: Bool[Array, "B n"]


class Seen(NamedTuple):
    """What `attend` saw of one layer: in the ring and in the rows of its segment."""

    ring: Float[Array, "B R K"]
    rows: Float[Array, "B m"]


@dataclass(frozen=True)
class TokenPolicy:
    """A method on `TokenRows`."""

    plan: CachePlan
    method: Method
    split: HeadSplit = ONE_DEVICE

    @property
    def layout(self) -> RowLayout:
        """Capacities."""
        return self.plan.layout

    @property
    def event_steps(self) -> int:
        """Steps between events, and the most tokens of a chunk."""
        return EVENT_STEPS

    def init(self, batch: int) -> TokenRows:
        """An empty cache."""
        return init_rows(self.layout, batch)

    def admit(self, cache: TokenRows, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform) -> TokenRows:
        """Scores a prompt's tokens, keeps the best of one layer and fills its ring.

        With ``layered`` the best of all layers so far are kept, which after the last layer are the best of all.
        """
        layout, kv_heads = self.layout, self.layout.shape.kv_heads
        assert transform.output is not None
        made = self.method.start(prompt, transform.output[layer], layout.rows // kv_heads)
        made = made._replace(score=self.split.group_mean(made.score))
        batch, size = made.score.shape[:2]
        start = jnp.maximum(0, prompt.length - layout.recent)
        position = jnp.broadcast_to(jnp.repeat(jnp.arange(size, dtype=jnp.int32), kv_heads), (batch, size * kv_heads))
        flat = partial(jnp.reshape, shape=(batch, size * kv_heads))
        new = Arrivals(
            tokens=to_bits(merge_kv(prompt.k, prompt.v), layout.shape.dtype).reshape(batch, size * kv_heads, -1),
            position=position,
            score=flat(made.score),
            weight=None if made.weight is None else flat(made.weight),
            pinned=jnp.zeros(position.shape, bool) if made.pinned is None else flat(made.pinned),
            head=jnp.broadcast_to(jnp.tile(jnp.arange(kv_heads, dtype=jnp.int32), size), position.shape),
            valid=position < start[:, None],
        )
        if layout.layered:
            # the most that one layer may hold, then the best of all layers
            limit = jnp.full((batch,), layout.most, jnp.int32)
            new = new._replace(valid=new.valid & self._choose(new, limit))
            cache = self._take(cache, layer, self._everything(cache), new)
        else:
            cache = self._take(cache, layer, segment(cache, layer), new)
        fill = partial(fill_ring, start=start, length=prompt.length, ring=layout.ring)
        ring = to_bits(fill(merge_kv(prompt.k, prompt.v).astype(jnp.float32)), layout.shape.dtype)
        return replace(
            cache,
            ring=cache.ring.at[layer].set(ring),
            ring_score=cache.ring_score.at[layer].set(fill(made.score)),
        )

    def admitted(self, cache: TokenRows, length: Int[Array, "B"]) -> TokenRows:
        """Sets the lengths; with ``layered`` brings the rows of each layer together."""
        cache = replace(cache, length=length, start=jnp.maximum(0, length - self.layout.recent))
        return group_by_layer(cache) if self.layout.layered else cache

    def attend(
        self,
        cache: TokenRows,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[TokenRows, Float[Array, "B T H D"], Seen]:
        """Appends to the ring and attends to it and to the layer's rows."""
        layout = self.layout
        batch, count = valid.shape
        kv_heads, head_dim = layout.shape.kv_heads, layout.shape.head_dim
        positions = cache.length[:, None] + jnp.arange(count, dtype=jnp.int32)
        cache = replace(cache, ring=append(cache.ring, layer, tokens, positions, valid, layout.shape.dtype))
        ring = from_bits(layer_slice(cache.ring, layer), layout.shape.dtype)
        ring = ring.reshape(batch, layout.ring, kv_heads, 2, head_dim)
        in_ring = ring_positions(cache.start, layout.ring)[:, None] <= positions[..., None]
        in_ring = jnp.broadcast_to((in_ring & valid[..., None])[:, :, None], (batch, count, kv_heads, layout.ring))

        here = segment(cache, layer)
        rows = from_bits(read(cache, cache.rows, here.first), layout.shape.dtype)
        if layout.per_head:
            rows = rows.reshape(batch, -1, kv_heads, 2, head_dim)
            used = jnp.swapaxes(here.used.reshape(batch, -1, kv_heads), 1, 2)
        else:
            rows = rows.reshape(batch, layout.most, 1, 2, head_dim)
            used = here.used[:, None] & (here.head[:, None] == jnp.arange(kv_heads, dtype=jnp.int32)[:, None])
        used = used[:, None] & valid[..., None, None]
        parts = [Part(ring[..., 0, :], ring[..., 1, :], in_ring), Part(rows[..., 0, :], rows[..., 1, :], used)]
        out, (to_ring, to_rows) = attend(q, parts)
        seen_ring, seen_rows = self.method.observed(to_ring), self.method.observed(to_rows)
        if layout.per_head:
            seen_rows = jnp.swapaxes(seen_rows, 1, 2).reshape(batch, -1)
        else:
            seen_rows = seen_rows.sum(axis=1)  # of the head that it belongs to; the others see nothing
        return cache, out, Seen(jnp.swapaxes(seen_ring, 1, 2), seen_rows)

    def observe(self, cache: TokenRows, seen: Seen, count: Int[Array, "B"]) -> TokenRows:
        """Refreshes the scores and advances the lengths."""
        by_layer = jnp.moveaxis(seen.rows, 0, 1)  # [B, L, m]
        flat = by_layer.reshape(by_layer.shape[0], -1)
        if cache.begin is not None:
            assert cache.owner is not None
            layer = jnp.maximum(cache.owner.astype(jnp.int32), 0) // self.layout.shape.kv_heads
            total, most = cache.position.shape[1], self.layout.most
            first = jnp.minimum(jnp.take_along_axis(cache.begin, layer, axis=1), total - most)
            index = layer * most + jnp.arange(total, dtype=jnp.int32) - first
            flat = jnp.where(cache.position >= 0, jnp.take_along_axis(flat, index, axis=1, mode="clip"), 0.0)
        return replace(
            cache,
            score=self.method.refresh(cache.score, flat),
            ring_score=self.method.refresh(cache.ring_score, seen.ring),
            length=cache.length + count,
        )

    def route(self, cache: TokenRows, transform: KeyTransform) -> TokenRows:
        """Lets the oldest tokens go from the ring and keeps the best of them and of the rows, in every layer."""
        layout = self.layout
        kv_heads, head_dim = layout.shape.kv_heads, layout.shape.head_dim
        # of devices that share a KV head each has added what its own query heads saw
        score, ring_score = self.split.group_mean((cache.score, cache.ring_score))
        cache = replace(cache, score=score, ring_score=ring_score)
        position, leaves = leaving(cache.start, cache.length, layout.recent, EVENT_STEPS)
        batch, count = position.shape
        if self.method.decay != 1:
            # a row at rest has none that leave, and what it remembers must not fade
            fading = self.method.decay ** leaves.sum(axis=1, dtype=jnp.float32)[:, None]
            ring_score = cache.ring_score * fading[None, :, :, None]
            cache = replace(cache, score=cache.score * fading, ring_score=ring_score)
        ring_rows, sequence = position % layout.ring, jnp.arange(batch)[:, None]
        flat = (batch, count * kv_heads)

        def one_layer(layer: Array, cache: TokenRows) -> TokenRows:
            tokens = cache.ring[layer, sequence, ring_rows].reshape(*position.shape, kv_heads, 2, head_dim)
            weight = None
            if layout.weighted:
                assert transform.output is not None
                values = from_bits(tokens[..., 1, :], layout.shape.dtype)
                weight = self.method.weigh(values, transform.output[layer])
            new = Arrivals(
                tokens=tokens.reshape(*flat, 2 * head_dim),
                position=jnp.repeat(position, kv_heads, axis=1),
                score=cache.ring_score[layer, sequence, ring_rows].reshape(flat),
                weight=None if weight is None else weight.reshape(flat),
                pinned=jnp.zeros(flat, bool),
                head=jnp.broadcast_to(jnp.tile(jnp.arange(kv_heads, dtype=jnp.int32), count), flat),
                valid=jnp.repeat(leaves, kv_heads, axis=1),
            )
            return self._take(cache, layer, segment(cache, layer), new)

        cache = lax.fori_loop(0, layout.shape.layers, one_layer, cache)
        gone = jnp.where(leaves, ring_rows, layout.ring)
        return replace(
            cache,
            ring_score=cache.ring_score.at[:, sequence, gone].set(0.0, mode="drop"),
            start=cache.start + leaves.sum(axis=1, dtype=jnp.int32),
        )

    def placement(self, cache: TokenRows) -> Int8[Array, "L B K S"]:
        """In the ring, in a row, or evicted; every head has its own tokens."""
        layout, size = self.layout, self.plan.total_len
        kv_heads, layers = layout.shape.kv_heads, layout.shape.layers
        at = jnp.arange(size, dtype=jnp.int32)
        tier = jnp.where(at < cache.start[:, None], Tier.EVICTED, Tier.RECENT)
        tier = jnp.where(at < cache.length[:, None], tier, Tier.UNSEEN).astype(jnp.int8)
        tier = jnp.broadcast_to(tier[None, :, None], (layers, tier.shape[0], kv_heads, size))
        if cache.owner is None:
            owner = jnp.arange(layout.rows * layers, dtype=jnp.int32)
            owner = owner // layout.rows * kv_heads + owner % layout.rows % kv_heads
            owner = jnp.broadcast_to(owner, cache.position.shape)
        else:
            owner = cache.owner.astype(jnp.int32)
        where = jnp.where(cache.position >= 0, cache.position, size)
        batch = jnp.arange(tier.shape[1])[:, None]
        kept = jnp.int8(Tier.FULL)
        return tier.at[owner // kv_heads, batch, owner % kv_heads, where].set(kept, mode="drop")

    def _choose(self, tokens: Arrivals, capacity: Int[Array, "B"]) -> Bool[Array, "B n"]:
        def one(score: Array, weight: Array | None, pinned: Array, head: Array, valid: Array, capacity: Array) -> Array:
            kv_heads = self.layout.shape.kv_heads
            return self.method.choose(Candidates(score, weight, pinned, head, valid, capacity, kv_heads))

        return jax.vmap(one)(tokens.score, tokens.weight, tokens.pinned, tokens.head, tokens.valid, capacity)

    def _everything(self, cache: TokenRows) -> Segment:
        batch, total = cache.position.shape
        zero, all_rows = jnp.zeros((batch,), jnp.int32), jnp.ones((batch, total), bool)
        assert cache.owner is not None
        head = cache.owner.astype(jnp.int32) % self.layout.shape.kv_heads
        return Segment(zero, zero + total, all_rows, cache.position >= 0, head)

    def _take(self, cache: TokenRows, layer: Int[Array, ""], here: Segment, new: Arrivals) -> TokenRows:
        """Keeps the best of some rows and of some new tokens, which are written over what does not stay."""
        layout, kv_heads = self.layout, self.layout.shape.kv_heads
        batch, total = cache.position.shape
        size = here.mine.shape[1]
        # all rows of the cache, or those of one layer
        look: Callable[[Array], Array] = (lambda x: x) if size == total else partial(read, cache, first=here.first)
        pinned = jnp.zeros(here.used.shape, bool) if cache.pinned is None else look(cache.pinned)
        old = (look(cache.position), look(cache.score), None if cache.weight is None else look(cache.weight))
        both: Any = jax.tree.map(
            lambda a, b: jnp.concatenate([a, b], axis=1),
            (*old, pinned, here.head, here.used),
            (new.position, new.score, new.weight, new.pinned, new.head, new.valid),
        )
        keep = self._choose(Arrivals(new.tokens, *both), here.capacity)
        stays, arrives = here.used & keep[:, :size], new.valid & keep[:, size:]
        zeros = jnp.zeros_like
        pool_of = (lambda x: x) if layout.per_head else zeros
        pools = kv_heads if layout.per_head else 1
        place = jax.vmap(partial(places, pools=pools))
        row = place(arrives, pool_of(new.head), here.mine & ~stays, pool_of(here.head))
        if row.shape[1] > size:  # a prompt: most of it is not written anywhere
            order = jnp.argsort(row, axis=1)[:, :size]
            take = partial(jnp.take_along_axis, indices=order, axis=1)
            row, tokens = take(row), jnp.take_along_axis(new.tokens, order[..., None], axis=1)
            new = Arrivals(tokens, *jax.tree.map(take, tuple(new[1:])))
        sequence = jnp.arange(batch)[:, None]
        lost = jnp.where(here.used & ~stays, here.first[:, None] + jnp.arange(size, dtype=jnp.int32), total)
        row = jnp.where(row < size, here.first[:, None] + row, total)

        def write(array: Array | None, values: Array | None) -> Array | None:
            if array is None or values is None:
                return array
            return array.at[sequence, row].set(values.astype(array.dtype), mode="drop")

        position = cache.position.at[sequence, lost].set(-1, mode="drop")
        return replace(
            cache,
            rows=write(cache.rows, new.tokens),
            position=write(position, new.position),
            score=write(cache.score, new.score),
            weight=write(cache.weight, new.weight),
            owner=write(cache.owner, layer * kv_heads + new.head),
            pinned=write(cache.pinned, new.pinned),
        )
