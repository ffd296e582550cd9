# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Products with tokens in full precision, a row and KV head at a time: the form for a CPU.

XLA:CPU copies an operand of a batched product into the order that it likes. Of a whole layer that is memory traffic,
several times what is read; keys or values of one head stay in the caches of the processor (LOG.md).
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels.float_bits import from_bits


def by_kv_head(q: Float[Array, "B T H D"], kv_heads: int) -> Float[Array, "B K TG D"]:
    """Queries in float32, scaled, with those that share a KV head together: rows for `scores`."""
    batch, tokens, _, head_dim = q.shape
    rows = q.astype(jnp.float32).reshape(batch, tokens, kv_heads, -1, head_dim) * head_dim**-0.5
    return jnp.moveaxis(rows, 1, 2).reshape(batch, kv_heads, -1, head_dim)


def by_query(out: Float[Array, "B K TG D"], tokens: int) -> Float[Array, "B T H D"]:
    """The way back, for what was made of such rows."""
    batch, kv_heads, _, head_dim = out.shape
    apart = out.reshape(batch, kv_heads, tokens, -1, head_dim)
    return jnp.moveaxis(apart, 2, 1).reshape(batch, tokens, -1, head_dim)


def scores(
    queries: Float[Array, "B K N D"], stack: Shaped[Array, "L B *s K_2_D"], layer: Int[Array, ""], kv_dtype: str
) -> Float[Array, "B K N S"]:
    """Products of queries and keys; S is the product of the axes ``*s``.

    Args:
        queries: N of each KV head.
        stack: tokens of all layers, key then value of each head; 16-bit floats are stored as bits.
        layer: index into it.
        kv_dtype: dtype of ``stack``.
    """
    batch, kv_heads, _, head_dim = queries.shape

    def one(row: Array, head: Array) -> Float[Array, "N S"]:
        return queries[row, head] @ _part(stack, layer, row, 2 * head, head_dim, kv_dtype).T

    return _each(one, batch, kv_heads)


def mix(
    weights: Float[Array, "B K N S"],
    seen: Bool[Array, "B S"],
    stack: Shaped[Array, "L B *s K_2_D"],
    layer: Int[Array, ""],
    kv_dtype: str,
) -> Float[Array, "B K N D"]:
    """Values weighed; those of tokens that are not ``seen`` may be anything, NaN included, where weights are 0."""
    batch, kv_heads = weights.shape[:2]
    head_dim = stack.shape[-1] // (2 * kv_heads)

    def one(row: Array, head: Array) -> Float[Array, "N D"]:
        values = _part(stack, layer, row, 2 * head + 1, head_dim, kv_dtype)
        return weights[row, head] @ jnp.where(seen[row][:, None], values, 0.0)

    return _each(one, batch, kv_heads)


def _part(stack: Array, layer: Array, row: Array, index: Array, head_dim: int, kv_dtype: str) -> Float[Array, "S D"]:
    """Keys or values of one head, in float32."""
    tokens = stack.reshape(*stack.shape[:2], -1, stack.shape[-1])
    part = lax.dynamic_slice(tokens, (layer, row, 0, index * head_dim), (1, 1, tokens.shape[2], head_dim))
    return from_bits(part[0, 0], kv_dtype)


def _each(function: Callable, batch: int, kv_heads: int) -> Float[Array, "B K N _"]:
    made = lax.map(lambda i: function(i // kv_heads, i % kv_heads), jnp.arange(batch * kv_heads, dtype=jnp.int32))
    return made.reshape(batch, kv_heads, *made.shape[1:])
