# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The full cache: every token in one dense array, nothing scored and nothing moved."""

from dataclasses import dataclass, replace
from typing import no_type_check

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Int8, Shaped

from pallas_kernels.float_bits import stored_dtype, to_bits
from qevict_jax.attention import dense_attention
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan
from qevict_jax.policies.base import Prompt, Tier
from qevict_jax.policies.options import NoOptions
from qevict_jax.types import KVShape
from qevict_jax.windows import KeyTransform


@no_type_check  # a pytree also holds shapes, specs and NumPy arrays
@struct.dataclass
class DenseCache:
    """Keys after RoPE and values of every token, a row per token: ``[L, B, S, K*2*D]``; ``length`` is ``[B]``."""

    tokens: Shaped[Array, "L B S K_2_D"]
    length: Int[Array, "B"]


def plan_full(shape: KVShape, config: CacheConfig, options: NoOptions, total_len: int, slot_multiple: int) -> CachePlan:
    """Bytes of every token, and one int32 length."""
    full_bytes = shape.bytes_per_token * total_len
    parts = (("keys and values", full_bytes), ("length", 4))
    return CachePlan(config, total_len, None, full_bytes + 4, full_bytes, parts, (("tokens", total_len),))


@dataclass(frozen=True)
class Full:
    """The uncompressed reference. ``event_steps`` is the block of steps compiled together; no event happens."""

    plan: CachePlan
    shape: KVShape
    event_steps: int = 8

    def init(self, batch: int) -> DenseCache:
        """An empty cache of ``plan.total_len`` tokens a row."""
        row = self.shape.kv_heads * 2 * self.shape.head_dim
        axes = (self.shape.layers, batch, self.plan.total_len, row)
        tokens = jnp.zeros(axes, stored_dtype(self.shape.dtype))
        return DenseCache(tokens, jnp.zeros((batch,), jnp.int32))

    def admit(self, cache: DenseCache, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform) -> DenseCache:
        """Stores the prompt; what lies beyond a row's length is overwritten before it is seen."""
        tokens = to_bits(merge_kv(prompt.k, prompt.v), self.shape.dtype)
        return replace(cache, tokens=cache.tokens.at[layer, :, : tokens.shape[1]].set(tokens))

    def admitted(self, cache: DenseCache, length: Int[Array, "B"]) -> DenseCache:
        """Sets the lengths."""
        return replace(cache, length=length)

    def attend(
        self,
        cache: DenseCache,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[DenseCache, Float[Array, "B T H D"], None]:
        """Appends and attends to everything up to each query's own position."""
        batch, count = valid.shape
        positions = cache.length[:, None] + jnp.arange(count, dtype=jnp.int32)
        rows = jnp.where(valid, positions, cache.tokens.shape[2])
        stack = cache.tokens.at[layer, jnp.arange(batch)[:, None], rows].set(
            to_bits(tokens, self.shape.dtype), mode="drop"
        )
        return replace(cache, tokens=stack), dense_attention(q, stack, layer, positions, self.shape.dtype), None

    def observe(self, cache: DenseCache, seen: None, count: Int[Array, "B"]) -> DenseCache:
        """Advances the lengths."""
        return replace(cache, length=cache.length + count)

    def route(self, cache: DenseCache, transform: KeyTransform) -> DenseCache:
        """Nothing moves."""
        return cache

    def placement(self, cache: DenseCache) -> Int8[Array, "L B 1 S"]:
        """Every position seen is kept."""
        seen = jnp.arange(self.plan.total_len) < cache.length[:, None]
        tier = jnp.where(seen, jnp.int8(Tier.FULL), jnp.int8(Tier.UNSEEN))
        return jnp.broadcast_to(tier[None, :, None], (self.shape.layers, tier.shape[0], 1, tier.shape[1]))


def merge_kv(k: Float[Array, "*n K D"], v: Float[Array, "*n K D"]) -> Float[Array, "*n K_2_D"]:
    """One row per token: key then value of each head."""
    return jnp.stack([k, v], axis=-2).reshape(*k.shape[:-2], -1)


def split_kv(tokens: Float[Array, "*n K_2_D"], kv_heads: int) -> tuple[Float[Array, "*n K D"], Float[Array, "*n K D"]]:
    """Keys and values of rows that `merge_kv` made."""
    apart = tokens.reshape(*tokens.shape[:-1], kv_heads, 2, -1)
    return apart[..., 0, :], apart[..., 1, :]
