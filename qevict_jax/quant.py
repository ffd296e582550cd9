# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Quantization of whole windows: asymmetric min-max, keys per channel and values per token (paper section 4.3).

Codes are rounded against the parameters as they are stored, not against the exact ones, so that the rounding of a scale
or an offset is not added to that of the codes.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from pallas_kernels.float_bits import to_bits
from pallas_kernels.packing import pack
from pallas_kernels.quantized_windows import QuantizedWindows

_BYTE = 255


def quantize_windows(
    keys: Float[Array, "*n Q W K D"], values: Float[Array, "*n Q W K D"], *, bits: int, param_bits: int
) -> QuantizedWindows:
    """Quantizes windows.

    Args:
        keys: before RoPE and bias, any float dtype; computed in float32.
        values: as keys.
        bits: bits of a code, 2, 3 or 4.
        param_bits: 16 for bfloat16 key scales and offsets, 8 for bytes and four bfloat16 numbers per window and head.

    Returns:
        The packed windows, with the leading axes of ``keys``.
    """
    keys, values = keys.astype(jnp.float32), values.astype(jnp.float32)
    *lead, slots, window, kv_heads, head_dim = keys.shape
    top = (1 << bits) - 1

    low = keys.min(axis=-3)
    scale = (keys.max(axis=-3) - low) / top
    if param_bits == 16:
        key_scale, key_offset = scale.astype(jnp.bfloat16), low.astype(jnp.bfloat16)
        low_half, high_half = (to_bits(x, "bfloat16").astype(jnp.uint32) for x in (key_scale, key_offset))
        key_params = low_half | (high_half << 16)
        numbers = []
    else:
        scale_bytes, scale_low, scale_step = _to_bytes(scale)
        offset_bytes, offset_low, offset_step = _to_bytes(low)
        key_scale = _linear(scale_bytes, scale_step, scale_low)
        key_offset = _linear(offset_bytes, offset_step, offset_low)
        key_params = (scale_bytes | (offset_bytes << 8)).astype(jnp.uint16)
        numbers = [scale_low, scale_step, offset_low, offset_step]
    key_codes = _codes(keys, key_scale[..., None, :, :], key_offset[..., None, :, :], top)

    value_low = values.min(axis=-1)
    value_scale = ((values.max(axis=-1) - value_low) / top).astype(jnp.bfloat16)
    value_low = value_low.astype(jnp.bfloat16)
    value_codes = _codes(values, value_scale[..., None], value_low[..., None], top)

    tokens_last = [jnp.swapaxes(x, -1, -2) for x in (value_scale, value_low)]  # [*n, Q, K, W]
    scalars = jnp.concatenate([*tokens_last, *(x[..., None] for x in numbers)], axis=-1)
    rows = jnp.stack([key_codes, value_codes], axis=-2).reshape(*lead, slots, window, -1)
    return QuantizedWindows(
        codes=tuple(words.reshape(*lead, slots, -1) for words in pack(rows, bits)),
        key_params=key_params.reshape(*lead, slots, kv_heads * head_dim),
        scalars=to_bits(scalars.reshape(*lead, slots, -1), "bfloat16"),
    )


def _linear(codes: Num[Array, "*n D"], step: Num[Array, "*n"], low: Num[Array, "*n"]) -> Float[Array, "*n D"]:
    wide = codes.astype(jnp.float32), step.astype(jnp.float32)[..., None], low.astype(jnp.float32)[..., None]
    return wide[0] * wide[1] + wide[2]


def _codes(x: Float[Array, "..."], scale: Num[Array, "..."], offset: Num[Array, "..."], top: int) -> Array:
    scale, offset = scale.astype(jnp.float32), offset.astype(jnp.float32)
    flat = scale == 0  # a constant channel: code 0, no division by zero
    code = jnp.round((x - offset) / jnp.where(flat, 1.0, scale))
    return jnp.where(flat, 0.0, jnp.clip(code, 0, top)).astype(jnp.int32)


def _to_bytes(x: Float[Array, "*n D"]) -> tuple[Array, Array, Array]:
    """int32 codes of a byte and the two bfloat16 numbers, lowest value and step, that decode them."""
    low = x.min(axis=-1).astype(jnp.bfloat16)
    step = ((x.max(axis=-1) - low.astype(jnp.float32)) / _BYTE).astype(jnp.bfloat16)
    return _codes(x, step[..., None], low[..., None], _BYTE), low, step
