# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""ZipCache (He et al., arXiv:2405.14256): every token is kept as codes, salient ones with more bits than others.

Of a prompt, each KV head gives the tokens of highest saliency (`policies.probe_saliency`) the most bits; the quantizer
is `quantizers.channel_separable`. New tokens stay in full precision until ``gap`` of them have gathered, and are then
classified by the attention that the newest query pays them, summed over the heads of the group.

Points of the paper: 70% of the tokens at 4 bits and 30% at 2 bits is the default (``important=0.7``); the original's
demo has ``important=0.6``. ``gap=100`` is the original's.

Deviations from the original code (github.com/ThisisBillhe/ZipCache):

- It decodes and re-quantizes the whole cache every ``gap`` tokens, so errors compound. Here values are written once,
  and codes of a key channel are rewritten only when a new token widens the range of its channel.
- Rows of a batch share neither ranges nor scales, a range of zero does not divide, codes are clipped.
- It keeps 8 bytes of position per token and head. Nothing needs them: keys hold their position, and a softmax has no
  order. None are stored here, so none are charged.
- Slots hold tokens in the order of their positions, each head its own; as in the original, the heads of a slot share
  one step and offset of values, though they are values of different tokens.
- Probe queries come from a fixed stream of random numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int8

from pallas_kernels.float_bits import from_bits
from pallas_kernels.layer_slice import layer_slice
from qevict_jax.coded_attention import NOWHERE, coded_attention
from qevict_jax.plan import CachePlan
from qevict_jax.policies.base import Prompt, Tier
from qevict_jax.policies.full import split_kv
from qevict_jax.policies.probe_saliency import probe_saliency
from qevict_jax.policies.recent_ring import append, ring_positions
from qevict_jax.policies.zipcache_cache import Options as Options
from qevict_jax.policies.zipcache_cache import ZipCache, ZipCacheLayout, abstract_cache
from qevict_jax.policies.zipcache_cache import plan_zipcache as plan_zipcache
from qevict_jax.quantizers.channel_separable import (
    SeparableTokens,
    add_tokens,
    decode_separable_head,
    split_tokens,
)
from qevict_jax.types import KVShape
from qevict_jax.windows import KeyTransform


def make_zipcache(plan: CachePlan, shape: KVShape, options: Options) -> "ZipCachePolicy":
    """The policy of a plan."""
    return ZipCachePolicy(plan)


def classify(
    saliency: Float[Array, "B K n"], high: Int[Array, "B"], count: Int[Array, "B"]
) -> tuple[Int[Array, "B K n"], Int[Array, "B K n"]]:
    """Which of ``count`` tokens of each head are salient: the ``high`` first, of equal ones the older.

    Returns:
        Index of the salient tokens in the order of their positions, then of anything; and the same of the others.
    """
    there = jnp.arange(saliency.shape[-1]) < count[:, None, None]
    order = jnp.argsort(jnp.where(there, -saliency, jnp.inf), axis=-1, stable=True)
    rank = jnp.argsort(order, axis=-1, stable=True)
    salient = rank < high[:, None, None]
    return jnp.argsort(~salient, axis=-1, stable=True), jnp.argsort(salient | ~there, axis=-1, stable=True)


@dataclass(frozen=True)
class ZipCachePolicy:
    """ZipCache behind the policy interface."""

    plan: CachePlan

    @property
    def layout(self) -> ZipCacheLayout:
        """Static numbers."""
        return self.plan.layout

    @property
    def event_steps(self) -> int:
        """Decode steps between events."""
        return self.layout.event_steps

    def init(self, batch: int) -> ZipCache:
        """An empty cache."""
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), abstract_cache(self.layout, batch))

    def admit(self, cache: ZipCache, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform) -> ZipCache:
        """Classifies and quantizes the whole prompt."""
        nothing = jnp.zeros_like(prompt.length)
        classes = self._store(cache.classes, layer, prompt.k, prompt.v, probe_saliency(prompt), nothing, prompt.length)
        return replace(cache, classes=classes)

    def admitted(self, cache: ZipCache, length: Int[Array, "B"]) -> ZipCache:
        """Sets the lengths."""
        return replace(cache, length=length, stored=length)

    def attend(
        self,
        cache: ZipCache,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[ZipCache, Float[Array, "B T H D"], None]:
        """Appends to the ring, attends to everything, and keeps what the newest query paid to the ring."""
        layout, shape = self.layout, self.layout.shape
        batch, count = valid.shape
        positions = cache.length[:, None] + jnp.arange(count, dtype=jnp.int32)
        ring = append(cache.ring, layer, tokens, positions, valid, shape.dtype)
        heads = tuple(
            split_tokens(jax.tree.map(lambda x: layer_slice(x, layer), part), shape.kv_heads) for part in cache.classes
        )
        # every coded token is older than every query: one position does for all of them
        coded_positions = [
            jnp.where(jnp.arange(size) < used[:, None], 0, NOWHERE)
            for size, used in zip(layout.slots, layout.used(cache.stored), strict=True)
        ]

        def decode(head: tuple) -> tuple[Array, Array]:
            made = [decode_separable_head(part, bits) for part, bits in zip(head, layout.bits, strict=True)]
            keys, values = (jnp.concatenate(x, axis=1) for x in zip(*made, strict=True))
            return keys, values

        out, weights = coded_attention(
            q,
            positions,
            valid,
            coded=heads,
            coded_positions=jnp.concatenate(coded_positions, axis=1).astype(jnp.int32),
            decode=decode,
            plain=layer_slice(ring, layer),
            plain_positions=ring_positions(cache.stored, layout.ring),
            kv_heads=shape.kv_heads,
            kv_dtype=shape.dtype,
        )
        fed = valid.sum(axis=1)
        by_query = weights.reshape(batch, shape.kv_heads, count, -1, layout.ring).sum(axis=3)
        newest = by_query[jnp.arange(batch), :, jnp.maximum(fed - 1, 0)]
        rows = jnp.where(fed > 0, jnp.arange(batch), batch)
        saliency = cache.saliency.at[layer, rows].set(newest, mode="drop")
        return replace(cache, ring=ring, saliency=saliency), out, None

    def observe(self, cache: ZipCache, seen: None, count: Int[Array, "B"]) -> ZipCache:
        """Advances the lengths."""
        return replace(cache, length=cache.length + count)

    def route(self, cache: ZipCache, transform: KeyTransform) -> ZipCache:
        """Quantizes the oldest ``gap`` tokens of every ring that holds as many."""
        layout, gap = self.layout, self.layout.options.gap
        arrive = jnp.where(cache.length - cache.stored >= gap, gap, 0)
        positions = cache.stored[:, None] + jnp.arange(gap, dtype=jnp.int32)
        batch, slots = jnp.arange(arrive.shape[0])[:, None], positions % layout.ring

        def one_layer(layer: Array, classes: tuple) -> tuple:
            tokens = from_bits(cache.ring[layer, batch, slots], layout.shape.dtype)
            keys, values = split_kv(tokens, layout.shape.kv_heads)
            saliency = jnp.take_along_axis(cache.saliency[layer], slots[:, None], axis=-1)
            return self._store(classes, layer, keys, values, saliency, cache.stored, arrive)

        # nothing arrives at most events: then there are no layers to go through
        layers = jnp.where((arrive > 0).any(), layout.shape.layers, 0)
        classes = lax.fori_loop(0, layers, one_layer, cache.classes)
        return replace(cache, classes=classes, stored=cache.stored + arrive)

    def placement(self, cache: ZipCache) -> Int8[Array, "L B 1 S"]:
        """Codes of either width, then recent tokens."""
        position = jnp.arange(self.plan.total_len)
        tier = jnp.where(position < cache.stored[:, None], jnp.int8(Tier.QUANTIZED), jnp.int8(Tier.RECENT))
        tier = jnp.where(position < cache.length[:, None], tier, jnp.int8(Tier.UNSEEN))
        return jnp.broadcast_to(tier[None, :, None], (self.layout.shape.layers, tier.shape[0], 1, tier.shape[1]))

    def _store(
        self,
        classes: tuple[SeparableTokens, SeparableTokens],
        layer: Int[Array, ""],
        keys: Float[Array, "B n K D"],
        values: Float[Array, "B n K D"],
        saliency: Float[Array, "B K n"],
        stored: Int[Array, "B"],
        arrive: Int[Array, "B"],
    ) -> tuple[SeparableTokens, SeparableTokens]:
        """Adds the first ``arrive`` of these tokens to both classes of one layer."""
        layout = self.layout
        before, after = layout.used(stored), layout.used(stored + arrive)
        chosen = classify(saliency, after[0] - before[0], arrive)
        written = []
        for part, tokens in enumerate(classes):
            slot = before[part][:, None] + jnp.arange(min(keys.shape[1], layout.slots[part]), dtype=jnp.int32)
            at = jnp.where(slot < after[part][:, None], slot, layout.slots[part])
            index = jnp.swapaxes(chosen[part], 1, 2)[:, : at.shape[1], :, None]
            held = jax.tree.map(lambda x: layer_slice(x, layer), tokens)
            made = add_tokens(
                held,
                jnp.take_along_axis(keys, index, axis=1),
                jnp.take_along_axis(values, index, axis=1),
                at,
                before[part],
                layout.bits[part],
            )
            written.append(jax.tree.map(_set_layer(layer), tokens, made))
        return written[0], written[1]


def _set_layer(layer: Int[Array, ""]) -> Callable[[Array, Array], Array]:
    return lambda stack, made: stack.at[layer].set(made)
