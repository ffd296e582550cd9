# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""How much attention the tokens of a prompt receive, per KV head; what token-level eviction starts from.

Probabilities are those of the prompt's own attention, ``exp(q k^T / sqrt(D) - log-sum-exp)`` in float32, made again a
block at a time: no array of queries times keys of all heads ever exists.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

_BLOCK_BYTES = 64 << 20  # of float32 probabilities at a time
POOLS = ("avg", "max")


def observe_prompt(
    q: Float[Array, "B S H D"],
    k: Float[Array, "B S K D"],
    lse: Float[Array, "B S H"],
    length: Int[Array, "B"],
    queries: int,
    reduce: Callable[[Float[Array, "B G N S"]], Any],
) -> Any:
    """Probabilities of each row's last queries, reduced one KV head at a time.

    Args:
        q: queries after RoPE; rows are padded on the right.
        k: keys after RoPE.
        lse: log-sum-exp of every query's logits over the keys that it sees.
        length: n of each row.
        queries: N, the last so many of each row; those that a short row lacks have no probability anywhere.
        reduce: probabilities of one KV head, causal, to arrays ``[B, S]``.

    Returns:
        What ``reduce`` returns, each array with the heads last, ``[B, S, K]``.
    """
    batch, size, _, head_dim = q.shape
    kv_heads, count = k.shape[2], min(queries, size)
    positions = length[:, None] - count + jnp.arange(count, dtype=jnp.int32)
    index = jnp.clip(positions, 0, size - 1)[..., None]
    q = jnp.take_along_axis(q, index[..., None], axis=1).reshape(batch, count, kv_heads, -1, head_dim)
    lse = jnp.take_along_axis(lse, index, axis=1).reshape(batch, count, kv_heads, -1)
    seen = jnp.arange(size) <= positions[..., None]  # none, for a query before the row's first

    def one_head(head: tuple) -> Any:
        q, lse, k = head
        return reduce(_probabilities(q, lse, k, seen))

    made = lax.map(one_head, (jnp.moveaxis(q, 2, 0), jnp.moveaxis(lse, 2, 0), jnp.moveaxis(k, 2, 0)))
    return _heads_last(made)


def column_sums(
    q: Float[Array, "B S H D"], k: Float[Array, "B S K D"], lse: Float[Array, "B S H"], length: Int[Array, "B"]
) -> Float[Array, "B S K"]:
    """Attention that every token receives from all queries of its row, summed, mean over the G query heads."""
    batch, size, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    limit = max(1, min(size, _BLOCK_BYTES // (4 * batch * (heads // kv_heads) * size)))
    block = 1 << (limit.bit_length() - 1)
    padding = -size % block
    q = jnp.pad(q, ((0, 0), (0, padding), (0, 0), (0, 0))).reshape(batch, size + padding, kv_heads, -1, head_dim)
    lse = jnp.pad(lse, ((0, 0), (0, padding), (0, 0))).reshape(batch, size + padding, kv_heads, -1)

    def one_head(head: tuple) -> Float[Array, "B S"]:
        q, lse, k = head

        def add(i: Array, sums: Array) -> Array:
            positions = i * block + jnp.arange(block, dtype=jnp.int32)
            seen = (jnp.arange(size) <= positions[:, None]) & (positions[:, None] < length[:, None, None])
            part, part_lse = (lax.dynamic_slice_in_dim(x, i * block, block, axis=1) for x in (q, lse))
            return sums + _probabilities(part, part_lse, k, seen).mean(axis=1).sum(axis=1)

        return lax.fori_loop(0, (size + padding) // block, add, jnp.zeros((batch, size)))

    made = lax.map(one_head, (jnp.moveaxis(q, 2, 0), jnp.moveaxis(lse, 2, 0), jnp.moveaxis(k, 2, 0)))
    return _heads_last(made)


def pool(x: Float[Array, "*n S"], kernel: int, kind: str) -> Float[Array, "*n S"]:
    """Mean or maximum over ``kernel`` neighbouring tokens or windows, centred; beyond the ends lie zeros."""
    initial, add = (0.0, lax.add) if kind == "avg" else (-jnp.inf, lax.max)
    ones = (1,) * (x.ndim - 1)
    # an even kernel reaches one further back
    padding = (*((0, 0),) * (x.ndim - 1), (kernel // 2, (kernel - 1) // 2))
    pooled = lax.reduce_window(x, initial, add, (*ones, kernel), (*ones, 1), padding)
    return pooled / kernel if kind == "avg" else pooled


def _probabilities(
    q: Float[Array, "B N G D"], lse: Float[Array, "B N G"], k: Float[Array, "B S D"], seen: Bool[Array, "B N S"]
) -> Float[Array, "B G N S"]:
    logits = jnp.einsum("bngd,bsd->bgns", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    return jnp.where(seen[:, None], jnp.exp(logits - jnp.moveaxis(lse, 2, 1)[..., None]), 0.0)


def _heads_last(made: Any) -> Any:
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), made)
