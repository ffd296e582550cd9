# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Non-uniform dense-and-sparse quantization (KVQuant, arXiv:2401.18079), one token at a time.

Dense: a number is brought to -1 .. 1, keys by the static range of their channel, values by the range of their token,
and becomes the nearest of the 2^bits poles of its layer's codebook,  ``x' = pole[code] * radius + center``. Sparse: of
each token the same number of keys and of values is kept exactly, in float16 with a 16-bit index over heads and
channels: the keys furthest out of their range, the highest and lowest values. Ranges of values leave them out.

The original keeps however many keys exceed their range, one in a hundred on average; static shapes want the same
number in every token, which is the cap that its deployment code has as an option.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Integer, UInt16

from pallas_kernels.float_bits import from_bits, to_bits
from qevict_jax.quantizers.code_rows import pack_rows, split_rows, unpack_head
from qevict_jax.quantizers.min_max import to_half


@dataclass(frozen=True)
class Codebook:
    """One layer's constants.

    Attributes:
        center: ``[K, D]`` middle of each key channel's range, before RoPE and bias.
        radius: ``[K, D]`` half of its width.
        key_poles: ``[2**bits]`` ascending.
        value_poles: as key_poles.
    """

    center: Float[Array, "K D"]
    radius: Float[Array, "K D"]
    key_poles: Float[Array, "P"]
    value_poles: Float[Array, "P"]


class NuqTokens(NamedTuple):
    """Tokens as they are stored; ``*n`` are any leading axes.

    Attributes:
        codes: rows of `code_rows`, ``[*n, K*2*words]`` a plane.
        numbers: ``[*n, 2 + 4*o]`` words of 16 bits: center and radius of the values, o exact keys, o exact values (all
            float16), index of those keys, index of those values (in ``K*D``).
    """

    codes: tuple[Integer[Array, "*n _K_2_words"], ...]
    numbers: UInt16[Array, "*n X"]


class NuqHeads(NamedTuple):
    """`NuqTokens` of one layer by head (N = B*K), slots last; indices count from the head's first channel."""

    codes: tuple[Integer[Array, "N 2 _words S"], ...]
    value_range: Float[Array, "N 2 S"]
    exact: Float[Array, "N 2 o S"]
    index: Int[Array, "N 2 o S"]


def outlier_count(share: float, channels: int) -> int:
    """o: exact numbers among the K*D keys, or values, of a token; rounded up."""
    return int(np.ceil(share * channels - 1e-9))


def quantize_nuq(
    keys: Float[Array, "*n K D"], values: Float[Array, "*n K D"], book: Codebook, outliers: int
) -> NuqTokens:
    """Quantizes tokens, keys before RoPE and bias.

    Args:
        keys: computed in float32.
        values: as keys.
        book: the layer's constants.
        outliers: o, numbers kept exactly.
    """
    keys, values = keys.astype(jnp.float32), values.astype(jnp.float32)
    lead = keys.shape[:-2]
    bits = (book.key_poles.shape[0] - 1).bit_length()
    scaled = (keys - book.center) / jnp.where(book.radius == 0, 1.0, book.radius)
    flat_keys, flat_values = keys.reshape(*lead, -1), values.reshape(*lead, -1)

    high, low = -(-outliers // 2), outliers // 2  # of the values
    highest, high_index = lax.top_k(flat_values, high + 1)
    lowest, low_index = lax.top_k(-flat_values, low + 1)
    top, bottom = highest[..., -1], -lowest[..., -1]
    center, radius = to_half((top + bottom) / 2), to_half((top - bottom) / 2)
    span = jnp.where(radius == 0, 1.0, radius.astype(jnp.float32))[..., None]
    scaled_values = (flat_values - center.astype(jnp.float32)[..., None]) / span

    numbers = [center[..., None], radius[..., None]]
    index = []
    if outliers:
        key_index = lax.top_k(jnp.abs(scaled).reshape(*lead, -1), outliers)[1]
        value_index = jnp.concatenate([high_index[..., :high], low_index[..., :low]], axis=-1)
        for flat, where in ((flat_keys, key_index), (flat_values, value_index)):
            numbers.append(to_half(jnp.take_along_axis(flat, where, axis=-1)))
            index.append(where.astype(jnp.uint16))
    codes = pack_rows(
        nearest(scaled, book.key_poles), nearest(scaled_values, book.value_poles).reshape(keys.shape), bits
    )
    return NuqTokens(codes, jnp.concatenate([to_bits(jnp.concatenate(numbers, axis=-1), "float16"), *index], axis=-1))


def split_nuq(tokens: NuqTokens, kv_heads: int, head_dim: int) -> NuqHeads:
    """Takes one layer, ``*n = B S``, apart by head."""
    batch, size, width = tokens.numbers.shape
    outliers = (width - 2) // 4
    words = jnp.swapaxes(tokens.numbers, 1, 2)
    first = (jnp.arange(kv_heads, dtype=jnp.int32) * head_dim)[:, None, None, None]
    floats = from_bits(words[:, : 2 + 2 * outliers], "float16")[:, None]
    index = words[:, None, 2 + 2 * outliers :].astype(jnp.int32).reshape(batch, 1, 2, outliers, size) - first

    def per_head(x: Array, *axes: int) -> Array:
        return jnp.broadcast_to(x, (batch, kv_heads, *x.shape[2:])).reshape(batch * kv_heads, *axes, size)

    return NuqHeads(
        split_rows(tokens.codes, kv_heads),
        per_head(floats[:, :, :2], 2),
        per_head(floats[:, :, 2:], 2, outliers),
        per_head(index, 2, outliers),
    )


def decode_nuq_head(
    head: NuqHeads,
    center: Float[Array, "D"],
    radius: Float[Array, "D"],
    key_poles: Float[Array, "P"],
    value_poles: Float[Array, "P"],
) -> tuple[Float[Array, "D S"], Float[Array, "D S"]]:
    """Keys, before RoPE and bias, and values of one head (arrays without the leading N) in float32."""
    bits = (key_poles.shape[0] - 1).bit_length()
    ranges = ((center[:, None], radius[:, None]), (head.value_range[0], head.value_range[1]))
    made = []
    for part, (poles, (middle, half)) in enumerate(zip((key_poles, value_poles), ranges, strict=True)):
        codes = unpack_head(tuple(x[part] for x in head.codes), bits, center.shape[0])
        dense = jnp.take(poles, codes, mode="clip") * half + middle
        here = (head.index[part] >= 0) & (head.index[part] < center.shape[0])
        channel = jnp.where(here, head.index[part], center.shape[0])  # of another head: out of range, dropped
        slot = jnp.broadcast_to(jnp.arange(channel.shape[1]), channel.shape)
        made.append(dense.at[channel, slot].set(head.exact[part], mode="drop"))
    return made[0], made[1]


def nearest(x: Float[Array, "*n"], poles: Float[Array, "P"]) -> Int[Array, "*n"]:
    """Index of the nearest of ascending poles; of two equally near ones the lower."""
    between = (poles[1:] + poles[:-1]) / 2
    code = jnp.zeros(x.shape, jnp.int32)
    for i in range(between.shape[0]):
        code += (x > between[i]).astype(jnp.int32)
    return code
