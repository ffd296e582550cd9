# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""ZipCache's saliency of prompt tokens (arXiv:2405.14256, section 4.2), from a tenth of the queries.

    saliency_j = sum over probe queries i and the group's heads of a_ij / (n - j)

Probes are the last 5% of a row's positions and as many random ones before them, with replacement. The original draws
new ones at every run; here they come from a fixed stream of numbers, so that a prompt always gives the same cache. As
in the original the divisor is the distance from the end, not the number of probes that see the key.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from qevict_jax.policies.base import Prompt

_PERCENT = 5
_SEED = 0
_BLOCK_BYTES = 64 << 20  # of float32 probabilities at a time


def probe_positions(length: Int[Array, "B"], size: int) -> tuple[Int[Array, "B P"], Bool[Array, "B P"]]:
    """Positions of the probe queries of prompts padded to ``size``, and which of them there are."""
    most = -(-size * _PERCENT // 100)
    count = -(-length * _PERCENT // 100)[:, None]
    there = jnp.arange(most) < count
    newest = length[:, None] - 1 - jnp.arange(most, dtype=jnp.int32)
    before = length[:, None] - count
    draws = jnp.asarray(np.random.default_rng(_SEED).random(most, np.float32))  # a longer stream begins with a shorter
    random = jnp.minimum((draws * before.astype(jnp.float32)).astype(jnp.int32), before - 1)
    positions = jnp.concatenate([newest, random], axis=1)
    return jnp.maximum(positions, 0), jnp.concatenate([there, there & (before > 0)], axis=1)


def probe_saliency(prompt: Prompt) -> Float[Array, "B K S"]:
    """Saliency of every prompt token by KV head; of padding it is 0."""
    batch, size, kv_heads, head_dim = prompt.k.shape
    groups = prompt.q.shape[2] // kv_heads
    positions, there = probe_positions(prompt.length, size)
    q = jnp.take_along_axis(prompt.q, positions[..., None, None], axis=1).astype(jnp.float32) * head_dim**-0.5
    lse = jnp.take_along_axis(prompt.lse, positions[..., None], axis=1)
    block = max(1, min(positions.shape[1], _BLOCK_BYTES // (4 * batch * kv_heads * groups * size)))
    padding = -positions.shape[1] % block
    keys = jnp.transpose(prompt.k.astype(jnp.float32), (0, 2, 3, 1))  # [B, K, D, S]
    at = jnp.arange(size)

    def blocks(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, padding), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(batch, -1, block, *x.shape[2:]), 1, 0)

    def add(total: Float[Array, "B K S"], part: tuple) -> tuple[Float[Array, "B K S"], None]:
        q, lse, positions, there = part
        logits = jnp.einsum("bpkgd,bkds->bkgps", q.reshape(batch, block, kv_heads, groups, head_dim), keys)
        by_head = jnp.transpose(lse.reshape(batch, block, kv_heads, groups), (0, 2, 3, 1))[..., None]
        seen = (at <= positions[..., None]) & there[..., None]
        return total + jnp.where(seen[:, None, None], jnp.exp(logits - by_head), 0.0).sum(axis=(2, 3)), None

    parts = (blocks(q), blocks(lse), blocks(positions), blocks(there))
    total, _ = lax.scan(add, jnp.zeros((batch, kv_heads, size)), parts)
    distance = prompt.length[:, None] - at
    return jnp.where(distance[:, None] > 0, total / jnp.maximum(distance, 1).astype(jnp.float32)[:, None], 0.0)
