# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The full cache that says what each head looks at: attention probabilities of every step, chunk by chunk.

No S x S array is ever made: the prompt's probabilities are added up over its queries, block by block, and those of the
newest chunk of steps replace those of the chunk before.
"""

from dataclasses import dataclass, field, replace
from typing import no_type_check

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from qevict_jax.attention import dense_weights
from qevict_jax.policies.base import Prompt
from qevict_jax.policies.full import DenseCache, Full
from qevict_jax.windows import KeyTransform

_BLOCK_BYTES = 64 << 20  # of float32 probabilities of a prompt at a time


@no_type_check  # a pytree also holds shapes, specs and NumPy arrays
@struct.dataclass
class ProbedCache(DenseCache):
    """A full cache and the attention that its positions received.

    Attributes:
        prompt_mass: ``[L, B, H, S]`` float32, summed over all queries of the prompt.
        step_mass: ``[L, B, sums, H, S]`` float16, each summed over ``every`` steps of the newest chunk.
    """

    prompt_mass: Float[Array, "L B H S"]
    step_mass: Float[Array, "L B sums H S"]


@dataclass(frozen=True)
class FullAttention(Full):
    """The full cache with a probe. ``event_steps`` is the chunk: the most tokens that `attend` takes at once.

    Attributes:
        heads: H.
        every: decode steps whose probabilities are added up; divides ``event_steps``.
    """

    heads: int = field(kw_only=True)
    every: int = field(kw_only=True)

    def init(self, batch: int) -> ProbedCache:
        """An empty cache."""
        dense = super().init(batch)
        layers, size = self.shape.layers, self.plan.total_len
        return ProbedCache(
            dense.tokens,
            dense.length,
            prompt_mass=jnp.zeros((layers, batch, self.heads, size), jnp.float32),
            step_mass=jnp.zeros((layers, batch, self.event_steps // self.every, self.heads, size), jnp.float16),
        )

    def admit(self, cache: DenseCache, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform) -> ProbedCache:
        """Stores the prompt and what its keys received."""
        cache = super().admit(cache, layer, prompt, transform)
        assert isinstance(cache, ProbedCache)
        mass = prompt_mass(prompt.q, prompt.k, prompt.lse, prompt.length)
        return replace(cache, prompt_mass=cache.prompt_mass.at[layer, :, :, : mass.shape[-1]].set(mass))

    def attend(
        self,
        cache: DenseCache,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[DenseCache, Float[Array, "B T H D"], Float[Array, "B sums H S"]]:
        """Attends as the full cache does, and returns the probabilities too."""
        cache, out, _ = super().attend(cache, layer, q, tokens, valid, transform)
        positions = cache.length[:, None] + jnp.arange(q.shape[1], dtype=jnp.int32)
        # the very numbers that attention just used: the compiler makes them once
        weights, _ = dense_weights(q, cache.tokens, layer, positions, self.shape.dtype)
        weights = jnp.moveaxis(weights, 1, 2).reshape(*q.shape[:3], -1)
        weights = jnp.where(valid[..., None, None], weights, 0.0)
        sums = weights.reshape(weights.shape[0], -1, self.every, *weights.shape[2:]).sum(axis=2)
        return cache, out, sums.astype(jnp.float16)

    def observe(self, cache: DenseCache, seen: Float[Array, "L B sums H S"], count: Int[Array, "B"]) -> ProbedCache:
        """Keeps the probabilities of this chunk."""
        assert isinstance(cache, ProbedCache)
        return replace(cache, step_mass=seen, length=cache.length + count)


def prompt_mass(
    q: Float[Array, "B S H D"],
    k: Float[Array, "B S K D"],
    lse: Float[Array, "B S H"],
    length: Int[Array, "B"],
) -> Float[Array, "B H S"]:
    """Attention that each key receives from all queries of a prompt, given the log-sum-exp of the queries' logits."""
    batch, size, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    limit = max(1, min(size, _BLOCK_BYTES // (4 * batch * heads * size)))
    block = 1 << (limit.bit_length() - 1)
    padding = -size % block
    grouped = jnp.pad(q.astype(jnp.float32), ((0, 0), (0, padding), (0, 0), (0, 0)))
    grouped = grouped.reshape(batch, -1, kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
    lse = jnp.pad(lse, ((0, 0), (0, padding), (0, 0))).reshape(batch, -1, kv_heads, heads // kv_heads)
    keys = k.astype(jnp.float32)

    def add(index: Array, total: Array) -> Array:
        start = index * block
        queries = lax.dynamic_slice_in_dim(grouped, start, block, axis=1)
        logits = jnp.einsum("btkgd,bskd->bkgts", queries, keys)
        norm = jnp.moveaxis(lax.dynamic_slice_in_dim(lse, start, block, axis=1), 1, -1)
        at = start + jnp.arange(block)
        seen = (jnp.arange(size) <= at[:, None]) & (at[:, None] < length[:, None, None])
        weights = jnp.where(seen[:, None, None], jnp.exp(logits - norm[..., None]), 0.0)
        return total + weights.sum(axis=3)

    empty = jnp.zeros((batch, kv_heads, heads // kv_heads, size), jnp.float32)
    return lax.fori_loop(0, (size + padding) // block, add, empty).reshape(batch, heads, size)
