# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A block of windows in full precision on a GPU: full slots, and ring and sinks cut into windows."""

import functools

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Shaped

from pallas_kernels.tiered_decode_attention import gpu_triton as triton
from pallas_kernels.tiered_decode_attention.gpu_online import Sums, attend, by_groups
from pallas_kernels.tiered_decode_attention.gpu_quantized import Shape


def dense_block(
    sums: Sums, queries: list, load, seen, head: Array, kv_dtype: str, shape: Shape
) -> tuple[Sums, Float[Array, "rows n"]]:
    """Attention to a block of windows in ``kv_dtype``, 16-bit floats stored as bits.

    Args:
        sums: state.
        queries: the two halves of the queries in ``kv_dtype``, and for bfloat16 those of what rounding them left over.
        load: ``(t, first column, count, size) -> [n, size]``, columns of token t of each window.
        seen: ``t -> ([rows, n], [n])``, what each row sees and what any row sees.
        head: KV head.
        kv_dtype: dtype of keys and values.
        shape: static numbers.

    Returns:
        The state, and the weight of each window relative to its ``peak``.
    """
    half, first = shape.head_dim // 2, head * 2 * shape.head_dim

    def numbers(words: Shaped[Array, "n c"]) -> Float[Array, "n c"]:
        return lax.bitcast_convert_type(words, jnp.dtype(kv_dtype)) if words.dtype == jnp.uint16 else words

    def score(t: Array | int) -> Float[Array, "rows n"]:
        products = []
        for i in (0, 1):
            keys = numbers(load(t, first + i * half, half, shape.half))
            products += [triton.dot(part[i], keys) for part in queries]
        return jnp.where(seen(t)[0], functools.reduce(jnp.add, products), -jnp.inf)

    def add_values(t: Array | int, weights: Array, constant: Array, mixed: Array) -> tuple[Array, Array]:
        values = numbers(load(t, first + shape.head_dim, shape.head_dim, shape.channels))
        any_row: Bool[Array, "n"] = seen(t)[1]
        values = jnp.where(any_row[:, None], values, jnp.zeros((), values.dtype))  # a weight of zero stops no NaN
        return constant, mixed + triton.mix(weights.astype(values.dtype), values)

    def take_in(group: Array | int, state: tuple) -> tuple:
        before = group * shape.group

        def add(t: int, *state: Array) -> tuple[Array, Array]:
            return add_values(before + t, *state)

        return attend(state[0], shape.group, lambda tokens: [score(before + t) for t in tokens], add, state[1])

    return by_groups(sums, shape.groups, take_in)
