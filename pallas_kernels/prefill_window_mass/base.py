# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Attention mass that windows of a prompt receive, in plain XLA and float32: the meaning that every kernel must match.

The probabilities come from the log-sum-exp of a flash pass, ``a = exp(q k / sqrt(D) - lse)``, so no S x S array exists.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

_BLOCK_BYTES = 64 << 20  # of float32 probabilities at a time


def prefill_window_mass(
    q: Float[Array, "B N H D"],
    keys: Float[Array, "B S K D"],
    lse: Float[Array, "B N H"],
    q_positions: Int[Array, "B N"],
    q_valid: Bool[Array, "B N"],
    key_weight: Float[Array, "B S"],
    *,
    window: int,
    sink: int,
) -> Float[Array, "B windows"]:
    """Mass per window from the given queries: sum over queries, mean over H, weighted sum over tokens.

    Args:
        q: the chosen prompt queries, after RoPE.
        keys: all prompt keys, after RoPE.
        lse: log of the softmax denominator of each query.
        q_positions: position of each query; it sees keys at positions up to its own.
        q_valid: queries that count.
        key_weight: weight of a token's mass, 0 for padding.
        window: W; window j starts at ``sink + j*W``.
        sink: tokens before the first window.

    Returns:
        ``[B, ceil((S - sink) / W)]``, at least one window; the last may be partial.
    """
    batch, count, heads, head_dim = q.shape
    size, kv_heads = keys.shape[1], keys.shape[2]
    groups = heads // kv_heads
    block = max(1, min(count, _BLOCK_BYTES // (4 * batch * heads * size)))
    padding = -count % block

    def blocks(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, padding), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(batch, -1, block, *x.shape[2:]), 1, 0)

    transposed = jnp.transpose(keys.astype(jnp.float32), (0, 2, 3, 1))  # [B, K, D, S]
    key_positions = jnp.arange(size, dtype=jnp.int32)

    def add(total: Float[Array, "B S"], part: tuple) -> tuple[Float[Array, "B S"], None]:
        q, lse, positions, valid = part
        rows = q.astype(jnp.float32).reshape(batch, block, kv_heads, groups, head_dim) * head_dim**-0.5
        logits = jnp.einsum("bnkgd,bkds->bkgns", rows, transposed)
        by_head = jnp.transpose(lse.reshape(batch, block, kv_heads, groups), (0, 2, 3, 1))
        seen = (key_positions <= positions[..., None]) & valid[..., None]  # [B, block, S]
        weights = jnp.where(seen[:, None, None], jnp.exp(logits - by_head[..., None]), 0.0)
        return total + weights.sum(axis=(1, 2, 3)) / heads, None

    parts = (blocks(q), blocks(lse), blocks(q_positions), blocks(q_valid))
    total, _ = lax.scan(add, jnp.zeros((batch, size), jnp.float32), parts)
    return window_sums(total * key_weight, window, sink)


def window_sums(mass: Float[Array, "B S"], window: int, sink: int) -> Float[Array, "B windows"]:
    """Sums over the tokens of each window after the sinks; at least one window, the last may be partial."""
    history = mass[:, sink:]
    windows = max(1, -(-history.shape[1] // window))
    history = jnp.pad(history, ((0, 0), (0, windows * window - history.shape[1])))
    return history.reshape(mass.shape[0], windows, window).sum(axis=-1)
