# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Sinks, ring and full windows on TPU: rows of tokens in full precision, keys after RoPE."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Shaped

from pallas_kernels.tiered_decode_attention import tpu_softmax as softmax
from pallas_kernels.tiered_decode_attention.tpu_parts import product, stacked_parts, sum_parts
from pallas_kernels.tiered_decode_attention.tpu_shape import KernelShape


def attend(
    shape: KernelShape,
    tokens: Any,
    seen: Any,
    kept: Bool[Array, "n D"],
    s: Any,
    store: Any,
) -> None:
    """Adds tokens to the softmax.

    Args:
        shape: static numbers.
        tokens: function of a slice of channels, which gives these columns of all tokens as stored.
        seen: function of a tile, which gives who sees what, ``[rows, n]``.
        kept: tokens that may be looked at at all: a weight of zero does not stop a NaN.
        s: scratch.
        store: function that takes rows (a slice), weights ``[rows, n]``, their parts and the peak.
    """
    rows, channels = shape.rows, shape.head_dim
    for tile in range(rows.tiles):
        here = slice(tile * rows.rows, (tile + 1) * rows.rows)
        scores: Any = 0.0
        for head in rows.heads(tile):
            first = head * 2 * channels
            keys = numbers(tokens(slice(first, first + channels)), shape)
            scores = scores + product(s.queries[head, 0, :, :channels], keys)
        scores = jnp.where(seen(here), sum_parts(scores, rows.rows), softmax.MASKED)
        peak = softmax.raise_peak(s, here, [scores])
        weights = jnp.exp2(scores - peak)
        s.total[here] += softmax.lane_sums(weights)
        stacked = stacked_parts(weights, shape.query_parts)
        store(here, weights, stacked, peak)
        found = []
        for head in rows.heads(tile):
            first = (head * 2 + 1) * channels
            stored = tokens(slice(first, first + channels))
            values = [jnp.where(kept, part.astype(jnp.float32), 0.0) for part in numbers(stored, shape)]
            found.append(mix(stacked, [part.astype(jnp.bfloat16) for part in values]))
        s.mixed[here] += own_rows(shape, [sum_parts(x, rows.rows) for x in found])


def mix(stacked: Float[Array, "rows n"], parts: list[Float[Array, "n D"]]) -> Float[Array, "rows D"]:
    """``stacked @ sum(parts)`` in float32."""
    products = [jnp.dot(stacked, part, preferred_element_type=jnp.float32) for part in parts]
    return sum(products[1:], products[0])


def own_rows(shape: KernelShape, by_head: list[Float[Array, "rows D"]]) -> Float[Array, "rows D"]:
    """Of each head's product with all rows of a tile, its own rows."""
    rows = shape.rows
    own = by_head[0]
    row = lax.broadcasted_iota(jnp.int32, own.shape, 0)
    for index, x in enumerate(by_head[1:], 1):
        own = jnp.where(row >= index * rows.stride, x, own)
    return own


def numbers(stored: Shaped[Array, "n C"], shape: KernelShape) -> list[Float[Array, "n C"]]:
    """bfloat16 parts of stored floats."""
    if shape.kv_dtype == "bfloat16":
        return [lax.bitcast_convert_type(stored, jnp.bfloat16)]
    rest = _from_float16(stored) if shape.kv_dtype == "float16" else stored
    made = []
    for _ in range(shape.key_parts):
        made.append(rest.astype(jnp.bfloat16))
        rest = rest - made[-1].astype(jnp.float32)
    return made


def _from_float16(bits: Shaped[Array, "n C"]) -> Float[Array, "n C"]:
    """float16 by integer arithmetic: Mosaic has no such type. What is not finite becomes NaN."""
    wide = bits.astype(jnp.int32)
    exponent, mantissa = (wide >> 10) & 0x1F, wide & 0x3FF
    normal = lax.bitcast_convert_type(((exponent + 112) << 23) | (mantissa << 13), jnp.float32)
    small = mantissa.astype(jnp.float32) * 2.0**-24
    size = jnp.where(exponent == 0, small, jnp.where(exponent == 0x1F, jnp.nan, normal))
    return jnp.where(wide >> 15 == 1, -size, size)
