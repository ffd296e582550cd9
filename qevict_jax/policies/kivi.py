# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""KIVI (Liu et al., arXiv:2402.02750): every token is kept, old ones as codes of 2 or 4 bits, new ones in full.

Keys are quantized after RoPE, per channel over groups of g tokens; values per token, over groups of g channels
(`quantizers.grouped`). Codes are written once.

Points of the paper: ``bits=2, group_size=32, residual=128`` (its LongBench tables, the default here, called KIVI-2);
``residual=32`` (its GSM8K example); ``group_size=128, residual=128`` (the defaults of the original's code). Its
authors recommend 4 bits for models with grouped queries.

Deviations from the original code (github.com/jy-yuan/KIVI):

- It keeps the last ``T mod R`` keys of a prompt in full precision, which may be none, and quantizes R keys at once
  when as many have gathered; of values it always keeps the last R. Here keys and values age together, one group at a
  time: after every event between R - g and R - 1 tokens are in full precision, whatever the length of the prompt, and
  up to 8 more until the next event. A row shorter than R is not quantized at all.
- A range of zero does not divide by zero; scales and offsets are float16 whatever the model's dtype.
- Where g does not divide head_dim, or is larger, the last group of channels is smaller.
- Rows of a batch have lengths of their own, and share no group.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int8

from pallas_kernels.float_bits import from_bits, to_bits
from pallas_kernels.layer_slice import layer_slice
from qevict_jax.coded_attention import NOWHERE, coded_attention
from qevict_jax.plan import CachePlan
from qevict_jax.policies.base import Prompt, Tier
from qevict_jax.policies.full import merge_kv, split_kv
from qevict_jax.policies.kivi_cache import KiviCache, KiviLayout, abstract_cache
from qevict_jax.policies.kivi_cache import Options as Options
from qevict_jax.policies.kivi_cache import plan_kivi as plan_kivi
from qevict_jax.policies.recent_ring import append, fill_ring, ring_positions
from qevict_jax.quantizers.grouped import (
    GroupedTokens,
    decode_group_head,
    quantize_groups,
    split_groups,
)
from qevict_jax.types import KVShape
from qevict_jax.windows import KeyTransform


def make_kivi(plan: CachePlan, shape: KVShape, options: Options) -> "Kivi":
    """The policy of a plan."""
    return Kivi(plan)


@dataclass(frozen=True)
class Kivi:
    """KIVI behind the policy interface."""

    plan: CachePlan

    @property
    def layout(self) -> KiviLayout:
        """Static numbers."""
        return self.plan.layout

    @property
    def event_steps(self) -> int:
        """Decode steps between events."""
        return self.layout.event_steps

    def init(self, batch: int) -> KiviCache:
        """An empty cache."""
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), abstract_cache(self.layout, batch))

    def admit(self, cache: KiviCache, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform) -> KiviCache:
        """Quantizes the prompt's groups that have aged and puts the rest into the ring."""
        layout, group = self.layout, self.layout.options.group_size
        aged = layout.ready(prompt.length)
        tokens = merge_kv(prompt.k, prompt.v)
        recent = fill_ring(tokens, aged * group, prompt.length, layout.ring)
        ring = cache.ring.at[layer].set(to_bits(recent, layout.shape.dtype))
        count = min(layout.groups, max(0, prompt.k.shape[1] - layout.options.residual + group) // group)
        codes = cache.codes
        if count:
            there = (jnp.arange(count) < aged[:, None])[..., None, None, None]
            keys, values = (
                jnp.where(there, x[:, : count * group].reshape(x.shape[0], count, group, *x.shape[2:]), 0)
                for x in (prompt.k, prompt.v)
            )
            made = quantize_groups(keys, values, layout.options.bits)
            codes = jax.tree.map(lambda stack, new: stack.at[layer, :, : new.shape[1]].set(new), codes, made)
        return replace(cache, ring=ring, codes=codes)

    def admitted(self, cache: KiviCache, length: Int[Array, "B"]) -> KiviCache:
        """Sets the lengths."""
        return replace(cache, length=length, aged=self.layout.ready(length))

    def attend(
        self,
        cache: KiviCache,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[KiviCache, Float[Array, "B T H D"], None]:
        """Appends to the ring and attends to everything."""
        layout = self.layout
        shape, options = layout.shape, layout.options
        positions = cache.length[:, None] + jnp.arange(valid.shape[1], dtype=jnp.int32)
        cache = replace(cache, ring=append(cache.ring, layer, tokens, positions, valid, shape.dtype))
        first = cache.aged * options.group_size
        heads = None
        if cache.codes is not None:
            heads = split_groups(jax.tree.map(lambda x: layer_slice(x, layer), cache.codes), shape.kv_heads)
        slots = jnp.arange(layout.groups * options.group_size, dtype=jnp.int32)
        out, _ = coded_attention(
            q,
            positions,
            valid,
            coded=heads,
            coded_positions=jnp.where(slots < first[:, None], slots, NOWHERE),
            decode=lambda head: decode_group_head(head, options.bits, options.group_size),
            plain=layer_slice(cache.ring, layer),
            plain_positions=ring_positions(first, layout.ring),
            kv_heads=shape.kv_heads,
            kv_dtype=shape.dtype,
        )
        return cache, out, None

    def observe(self, cache: KiviCache, seen: None, count: Int[Array, "B"]) -> KiviCache:
        """Advances the lengths."""
        return replace(cache, length=cache.length + count)

    def route(self, cache: KiviCache, transform: KeyTransform) -> KiviCache:
        """Quantizes the oldest group of every row that has one to spare."""
        if cache.codes is None:
            return cache
        layout, group = self.layout, self.layout.options.group_size
        due = layout.ready(cache.length) > cache.aged
        within = jnp.arange(group, dtype=jnp.int32)
        positions = cache.aged[:, None] * group + within
        batch = jnp.arange(due.shape[0])

        def one_layer(layer: Array, codes: GroupedTokens) -> GroupedTokens:
            tokens = from_bits(cache.ring[layer, batch[:, None], positions % layout.ring], layout.shape.dtype)
            keys, values = split_kv(tokens, layout.shape.kv_heads)
            made = quantize_groups(keys[:, None], values[:, None], layout.options.bits)
            at_group = jnp.where(due, cache.aged, layout.groups)
            at_token = jnp.where(due[:, None], positions, layout.groups * group)
            return GroupedTokens(
                codes=tuple(
                    stack.at[layer, batch[:, None], at_token].set(new, mode="drop")
                    for stack, new in zip(codes.codes, made.codes, strict=True)
                ),
                key_params=codes.key_params.at[layer, batch, at_group].set(made.key_params[:, 0], mode="drop"),
                value_params=codes.value_params.at[layer, batch[:, None], at_token].set(made.value_params, mode="drop"),
            )

        # no row is due at most events: then there are no layers to go through
        layers = jnp.where(due.any(), layout.shape.layers, 0)
        codes = lax.fori_loop(0, layers, one_layer, cache.codes)
        return replace(cache, codes=codes, aged=cache.aged + due.astype(jnp.int32))

    def placement(self, cache: KiviCache) -> Int8[Array, "L B 1 S"]:
        """Codes up to the ring, recent tokens in it."""
        position = jnp.arange(self.plan.total_len)
        group = self.layout.options.group_size
        tier = jnp.where(position < cache.aged[:, None] * group, jnp.int8(Tier.QUANTIZED), jnp.int8(Tier.RECENT))
        tier = jnp.where(position < cache.length[:, None], tier, jnp.int8(Tier.UNSEEN))
        return jnp.broadcast_to(tier[None, :, None], (self.layout.shape.layers, tier.shape[0], 1, tier.shape[1]))
