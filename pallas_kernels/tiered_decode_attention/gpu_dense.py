# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A block of tokens in full precision on a GPU: rows that lie one after the other, of full slots or ring and sinks."""

import functools

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Shaped

from pallas_kernels.tiered_decode_attention import gpu_triton as triton
from pallas_kernels.tiered_decode_attention.gpu_online import Sums, attend
from pallas_kernels.tiered_decode_attention.gpu_quantized import Shape


def dense_block(
    sums: Sums,
    queries: list[Float[Array, "rows channels"]],
    load,
    seen: Bool[Array, "rows n"],
    attended: Bool[Array, "n"],
    head: Array,
    kv_dtype: str,
    shape: Shape,
) -> tuple[Sums, Float[Array, "rows windows"]]:
    """Attention to a block of tokens in ``kv_dtype``, 16-bit floats stored as bits.

    Args:
        sums: state.
        queries: in ``kv_dtype``, and for bfloat16 also what rounding left over.
        load: ``(first, count) -> [n, channels]``, columns of the tokens' rows, zeros behind the last.
        seen: what each row sees.
        attended: what any row sees.
        head: KV head.
        kv_dtype: dtype of keys and values.
        shape: static numbers.

    Returns:
        The state, and the weight of each window relative to its ``peak``.
    """
    first = head * 2 * shape.head_dim

    def numbers(words: Shaped[Array, "n channels"]) -> Float[Array, "n channels"]:
        return lax.bitcast_convert_type(words, jnp.dtype(kv_dtype)) if words.dtype == jnp.uint16 else words

    def scores(_) -> list[Float[Array, "rows n"]]:
        keys = numbers(load(first, shape.head_dim))
        products = [triton.dot(part, keys) for part in queries]
        return [jnp.where(seen, functools.reduce(jnp.add, products), -jnp.inf)]

    def add_values(_, weights: Array, constant: Array, mixed: Array) -> tuple[Array, Array]:
        values = numbers(load(first + shape.head_dim, shape.head_dim))
        values = jnp.where(attended[:, None], values, jnp.zeros((), values.dtype))  # a weight of zero stops no NaN
        return constant, mixed + triton.mix(weights.astype(values.dtype), values)

    sums, received = attend(sums, 1, scores, add_values)
    return sums, received.reshape(shape.rows, -1, shape.window).sum(axis=2)
