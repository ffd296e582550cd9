# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over tokens kept as codes and tokens kept in full precision, as one softmax; plain XLA, float32.

One head of one row is decoded at a time, so that what is dequantized never exceeds the keys and values of one head. On
a CPU that is also the faster way (LOG.md, decode attention over INT3 windows); for accelerators it is no claim to
speed.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels.float_bits import from_bits
from pallas_kernels.head_by_head import by_kv_head, by_query

NOWHERE = jnp.iinfo(jnp.int32).max  # position of a slot that holds nothing


def coded_attention(
    q: Float[Array, "B T H D"],
    q_positions: Int[Array, "B T"],
    q_valid: Bool[Array, "B T"],
    *,
    coded: Any | None,
    coded_positions: Int[Array, "B S"],
    decode: Callable[[Any], tuple[Float[Array, "D S"], Float[Array, "D S"]]],
    plain: Shaped[Array, "B R K_2_D"] | None,
    plain_positions: Int[Array, "B R"] | None,
    kv_heads: int,
    kv_dtype: str,
) -> tuple[Float[Array, "B T H D"], Float[Array, "B K TG R"]]:
    """Attention of T query tokens; each sees the positions up to its own.

    Args:
        q: queries after RoPE.
        q_positions: position of each.
        q_valid: padding sees nothing.
        coded: arrays with a leading axis N = B*K; None if there are none, with S = 0.
        coded_positions: position of each coded token, `NOWHERE` for a slot that holds none and may hold anything.
        decode: keys (after bias and RoPE) and values of one element of ``coded``.
        plain: one layer of stored tokens in full precision, keys after RoPE; None if there are none.
        plain_positions: their positions, or later ones for slots that hold none.
        kv_heads: K.
        kv_dtype: dtype of ``plain``.

    Returns:
        Output in float32, zeros for a query that sees nothing; and the probabilities of the plain tokens, by KV head,
        T*G query rows with the G heads of a token together (R = 0 without any).
    """
    batch, count, heads, head_dim = q.shape
    groups = heads // kv_heads
    rows = by_kv_head(q, kv_heads).reshape(batch * kv_heads, count * groups, head_dim)
    if plain is None or plain_positions is None:
        plain_positions = jnp.zeros((batch, 0), jnp.int32)
        apart = jnp.zeros((2, batch * kv_heads, 0, head_dim))
    else:
        apart = from_bits(plain, kv_dtype).reshape(batch, -1, kv_heads, 2, head_dim)
        apart = jnp.transpose(apart, (3, 0, 2, 1, 4)).reshape(2, batch * kv_heads, -1, head_dim)
    split = coded_positions.shape[1]
    positions = jnp.concatenate([coded_positions, plain_positions], axis=1)
    seen = (positions[:, None, :] <= q_positions[..., None]) & q_valid[..., None]  # [B, T, S + R]

    def attend(head: tuple) -> tuple[Float[Array, "TG D"], Float[Array, "TG R"]]:
        row, queries, part, plain_keys, plain_values = head
        keys, values = (jnp.zeros((head_dim, 0)),) * 2 if coded is None else decode(part)
        visible = lax.dynamic_index_in_dim(seen, row, axis=0, keepdims=False)
        anyone = visible.any(axis=0)  # a weight of zero does not stop a NaN
        visible = jnp.repeat(visible, groups, axis=0)
        logits = jnp.concatenate([queries @ keys, queries @ plain_keys.T], axis=1)
        logits = jnp.where(visible, logits, -jnp.inf)
        peak = logits.max(axis=1, keepdims=True)
        weights = jnp.exp(logits - jnp.where(jnp.isfinite(peak), peak, 0.0))
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / jnp.where(total > 0, total, 1.0)
        out = weights[:, :split] @ jnp.where(anyone[:split], values, 0.0).T
        out += weights[:, split:] @ jnp.where(anyone[split:, None], plain_values, 0.0)
        return out, weights[:, split:]

    row_of_head = jnp.arange(batch * kv_heads) // kv_heads
    out, weights = lax.map(attend, (row_of_head, rows, coded, apart[0], apart[1]))
    out, weights = (x.reshape(batch, kv_heads, count * groups, -1) for x in (out, weights))
    return by_query(out, count), weights
