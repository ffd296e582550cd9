# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Causal attention of a prompt in plain XLA, by blocks of queries: memory linear in S, softmax in float32."""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_SPANS = 8  # a causal pass over one row of spans skips (1 - 1/_SPANS)/2 of the key blocks
_BLOCK_BYTES = 64 << 20  # of float32 logits at a time


def causal_attention(
    q: Float[Array, "B S H D"], k: Float[Array, "B S K D"], v: Float[Array, "B S K D"]
) -> tuple[Float[Array, "B S H D"], Float[Array, "B S H"]]:
    """Attention of every token to itself and those before it, logits scaled by 1/sqrt(D).

    Rows may be padded on the right: a token never sees what comes after it.

    Returns:
        Output in the dtype of ``v`` and the log-sum-exp of every query's logits in float32.
    """
    batch, size, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    groups = heads // kv_heads
    limit = max(1, min(size, 512, _BLOCK_BYTES // (4 * batch * heads * size)))
    block = 1 << (limit.bit_length() - 1)  # a power of two wastes no padding on the sizes that prompts are padded to
    span = block * -(-size // (_SPANS * block))  # queries that share one extent of keys
    keys = jnp.transpose(k, (0, 2, 3, 1))  # [B, K, D, S]
    values = jnp.transpose(v, (0, 2, 1, 3))  # [B, K, S, D]
    scale = head_dim**-0.5

    def attend(start: Array, extent: int) -> tuple[Array, Array]:
        queries = lax.dynamic_slice_in_dim(padded, start, block, axis=1)
        queries = queries.reshape(batch, block, kv_heads, groups, head_dim)
        rows = jnp.transpose(queries, (0, 2, 1, 3, 4)).reshape(batch, kv_heads, block * groups, head_dim)
        logits = jnp.einsum("bkqd,bkds->bkqs", rows, keys[..., :extent], preferred_element_type=jnp.float32) * scale
        positions = start + jnp.arange(block * groups) // groups
        logits = jnp.where(jnp.arange(extent) <= positions[:, None], logits, -jnp.inf)
        peak = logits.max(axis=-1, keepdims=True)
        weights = jnp.exp(logits - peak)
        total = weights.sum(axis=-1, keepdims=True)
        out = jnp.einsum(
            "bkqs,bksd->bkqd",
            weights.astype(v.dtype),
            values[:, :, :extent],
            preferred_element_type=jnp.float32,
        )
        out, lse = (out / total).astype(v.dtype), (peak + jnp.log(total))[..., 0]
        out = jnp.transpose(out.reshape(batch, kv_heads, block, groups, head_dim), (0, 2, 1, 3, 4))
        lse = jnp.transpose(lse.reshape(batch, kv_heads, block, groups), (0, 2, 1, 3))
        return out.reshape(batch, block, heads, head_dim), lse.reshape(batch, block, heads)

    padded_size = block * -(-size // block)
    padded = jnp.pad(q, ((0, 0), (0, padded_size - size), (0, 0), (0, 0)))
    outs, lses = [], []
    for first in range(0, padded_size, span):
        last = min(first + span, padded_size)
        out, lse = lax.map(partial(attend, extent=min(last, size)), jnp.arange(first, last, block))
        outs.append(jnp.moveaxis(out, 0, 1).reshape(batch, last - first, heads, head_dim))
        lses.append(jnp.moveaxis(lse, 0, 1).reshape(batch, last - first, heads))
    return jnp.concatenate(outs, axis=1)[:, :size], jnp.concatenate(lses, axis=1)[:, :size]
