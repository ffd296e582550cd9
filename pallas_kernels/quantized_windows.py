# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Quantized windows as arrays, and how they decode: asymmetric min-max, keys per channel, values per token.

Keys and values of a head stand side by side in one row (``K 2 D``, merged), so one window is one contiguous row and a
row is a multiple of 128 lanes even for head_dim 64: stored apart, XLA:TPU moves or pads whole tiers (LOG.md).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Integer

from pallas_kernels.float_bits import from_bits
from pallas_kernels.packing import planes, unpack


class QuantizedWindows(NamedTuple):
    """Windows of W tokens, K heads and D channels; ``*n`` are any leading axes, in a cache ``L B``.

    Attributes:
        codes: packed codes, one array ``[*n, Q, words*K*2*D]`` per bit plane (`packing`), word-major.
        key_params: ``[*n, Q, K*D]``: scale in the low half of a word and offset in the high half. uint32 words hold two
            bfloat16; uint16 words hold two bytes, decoded by four numbers in ``scalars``.
        scalars: ``[*n, Q, P]`` bits of bfloat16, P at least K*X, the rest padding. Per head, X is W value scales, W
            value offsets and, with uint16 ``key_params``, lowest scale, step of a scale, lowest offset, step of an
            offset.
    """

    codes: tuple[Integer[Array, "*n Q _words_K_2_D"], ...]
    key_params: Integer[Array, "*n Q K_D"]
    scalars: Integer[Array, "*n Q P"]


class HeadWindows(NamedTuple):
    """`QuantizedWindows` of one layer taken apart by head (N = B*K), ready to decode.

    Keys have slots on the last axis and the two halves of RoPE apart: then every step of decoding is a plain
    operation on long vectors, and the keys come out as the right operand of ``q @ k``. Values come out as that of ``p
    @ v``.
    Tokens are in the order (W, Q) in both.
    """

    key_codes: tuple[Integer[Array, "N 2 halfD _words Q"], ...]
    key_scale: Float[Array, "N 2 halfD Q"]
    key_offset: Float[Array, "N 2 halfD Q"]
    value_codes: tuple[Integer[Array, "N _words Q D"], ...]
    value_scale: Float[Array, "N W Q"]
    value_offset: Float[Array, "N W Q"]


def scalars_per_head(window: int, param_bits: int) -> int:
    """X, the numbers of ``scalars`` that one head takes."""
    return 2 * window + (4 if param_bits == 8 else 0)


def split_heads(
    windows: QuantizedWindows,
    *,
    kv_heads: int,
    bits: int,
    window: int,
    key_bias: Float[Array, "K D"] | None = None,
) -> HeadWindows:
    """Takes the windows of one layer, ``*n = B``, apart by head, and decodes the key parameters to float32.

    Args:
        windows: arrays ``[B, Q, ...]``.
        kv_heads: K.
        bits: bits of a code.
        window: W.
        key_bias: bias of the key projection, added to the offsets: nothing is left to do per token.
    """
    batch, slots, channels = windows.key_params.shape
    head_dim = channels // kv_heads
    rows = batch * kv_heads
    parts = []
    for words, plane in zip(windows.codes, planes(bits, window), strict=True):
        # [B, Q, words, K, key | value, D]; keys to [B, K, D, words, Q] and values to [B, K, words, Q, D]
        apart = words.reshape(batch, slots, plane.words, kv_heads, 2, head_dim)
        keys = jnp.transpose(apart[..., 0, :], (0, 3, 4, 2, 1)).reshape(rows, head_dim, plane.words, slots)
        values = jnp.transpose(apart[..., 1, :], (0, 3, 2, 1, 4)).reshape(rows, plane.words, slots, head_dim)
        parts.append((keys, values))
    per_head = scalars_per_head(window, 8 if windows.key_params.dtype == jnp.uint16 else 16)
    numbers = from_bits(windows.scalars[..., : kv_heads * per_head], "bfloat16")
    numbers = jnp.swapaxes(numbers, 1, 2).reshape(rows, per_head, slots)
    params = jnp.swapaxes(windows.key_params, 1, 2).reshape(rows, head_dim, slots)
    scale, offset = _key_parameters(params, numbers[:, 2 * window :])
    if key_bias is not None:
        bias = jnp.broadcast_to(key_bias.astype(jnp.float32), (batch, kv_heads, head_dim))
        offset = offset + bias.reshape(rows, head_dim, 1)

    def halves(x: Array) -> Array:
        return x.reshape(rows, 2, head_dim // 2, *x.shape[2:])

    return HeadWindows(
        key_codes=tuple(halves(keys) for keys, _ in parts),
        key_scale=halves(scale),
        key_offset=halves(offset),
        value_codes=tuple(values for _, values in parts),
        value_scale=numbers[:, :window],
        value_offset=numbers[:, window : 2 * window],
    )


def decode_keys(
    codes: tuple[Integer[Array, "halfD _words Q"], ...],
    scale: Float[Array, "halfD Q"],
    offset: Float[Array, "halfD Q"],
    bits: int,
    window: int,
) -> Float[Array, "halfD W Q"]:
    """Half the channels of one head's keys, before RoPE, float32: ``code * scale + offset``."""
    return unpack(codes, bits, window, axis=1).astype(jnp.float32) * scale[:, None] + offset[:, None]


def decode_value_codes(
    codes: tuple[Integer[Array, "_words Q D"], ...], bits: int, window: int
) -> Float[Array, "W Q D"]:
    """One head's value codes as float32. Scale and offset stay apart: they fold into the probabilities."""
    return unpack(codes, bits, window, axis=0).astype(jnp.float32)


def _key_parameters(
    words: Integer[Array, "N D Q"], numbers: Float[Array, "N four Q"]
) -> tuple[Float[Array, "N D Q"], Float[Array, "N D Q"]]:
    if words.dtype == jnp.uint16:
        low_scale, step_scale, low_offset, step_offset = (numbers[:, i, None] for i in range(4))
        wide = words.astype(jnp.int32)
        scale = low_scale + step_scale * (wide & 0xFF).astype(jnp.float32)
        offset = low_offset + step_offset * (wide >> 8).astype(jnp.float32)
        return scale, offset
    # a bfloat16 is the upper half of a float32
    scale, offset = words << 16, words & jnp.uint32(0xFFFF0000)
    return lax.bitcast_convert_type(scale, jnp.float32), lax.bitcast_convert_type(offset, jnp.float32)


def dequantize(
    windows: QuantizedWindows, *, kv_heads: int, bits: int, window: int
) -> tuple[Float[Array, "B Q W K D"], Float[Array, "B Q W K D"]]:
    """Whole windows back to float32: keys before RoPE and bias, and values. Takes ``*n = B``."""
    batch, slots, channels = windows.key_params.shape
    heads = split_heads(windows, kv_heads=kv_heads, bits=bits, window=window)

    def one(head: HeadWindows) -> tuple[Array, Array]:
        half_keys = jax.vmap(lambda codes, scale, offset: decode_keys(codes, scale, offset, bits, window))
        keys = half_keys(head.key_codes, head.key_scale, head.key_offset).reshape(-1, window, slots)
        codes = decode_value_codes(head.value_codes, bits, window)
        return jnp.transpose(keys, (2, 1, 0)), jnp.swapaxes(
            codes * head.value_scale[..., None] + head.value_offset[..., None], 0, 1
        )

    def tokens_first(x: Array) -> Array:
        apart = x.reshape(batch, kv_heads, slots, window, channels // kv_heads)
        return jnp.transpose(apart, (0, 2, 3, 1, 4))

    keys, values = jax.vmap(one)(heads)
    return tokens_first(keys), tokens_first(values)
