# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Windows between their two forms: full precision (keys after bias and RoPE) and codes (keys before both)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.quantized_windows import QuantizedWindows, dequantize
from pallas_kernels.rope import cos_sin, rotate
from qevict_jax.cache import TierLayout
from qevict_jax.quant import quantize_windows


class KeyTransform(NamedTuple):
    """What lies between a projected key and the key that attention sees, and what becomes of a value after it.

    Attributes:
        inv_freq: RoPE frequencies ``[D/2]``, scaling applied.
        bias: bias of the key projection ``[L, K, D]``, None if the model has none.
        output: kernels of the output projection ``[L, H*D, E]``, for policies that weigh values by it; the parameters
            themselves, so that it costs nothing.
    """

    inv_freq: Float[Array, "halfD"]
    bias: Float[Array, "L K D"] | None
    output: Float[Array, "L H_D E"] | None = None


def quantize(
    tokens: Float[Array, "B N W K_2_D"],
    windows: Int[Array, "B N"],
    layout: TierLayout,
    inv_freq: Float[Array, "halfD"],
    bias: Float[Array, "K D"] | None,
) -> QuantizedWindows:
    """Codes ``[B, N, ...]`` of full-precision windows; RoPE and bias come off the keys in float32."""
    keys, values = _apart(tokens, layout)
    cos, sin = cos_sin(_positions(windows, layout), inv_freq)
    keys = rotate(keys, cos, -sin)
    if bias is not None:
        keys = keys - bias.astype(jnp.float32)
    made = quantize_windows(keys, values, bits=layout.bits, param_bits=layout.param_bits)
    padding = layout.scalar_row - made.scalars.shape[-1]
    return made._replace(scalars=jnp.pad(made.scalars, ((0, 0), (0, 0), (0, padding))))


def restore(
    codes: QuantizedWindows,
    windows: Int[Array, "B N"],
    layout: TierLayout,
    inv_freq: Float[Array, "halfD"],
    bias: Float[Array, "K D"] | None,
) -> Float[Array, "B N W K_2_D"]:
    """Full-precision form of codes ``[B, N, ...]``: dequantized, with bias and RoPE on the keys."""
    kv_heads = layout.shape.kv_heads
    keys, values = dequantize(codes, kv_heads=kv_heads, bits=layout.bits, window=layout.window)
    if bias is not None:
        keys = keys + bias.astype(jnp.float32)
    keys = rotate(keys, *cos_sin(_positions(windows, layout), inv_freq))
    tokens = jnp.stack([keys, values], axis=-2)
    return tokens.reshape(*windows.shape, layout.window, layout.row)


def _positions(windows: Int[Array, "B N"], layout: TierLayout) -> Int[Array, "B N W"]:
    start = layout.sink + windows * layout.window
    return start[..., None] + jnp.arange(layout.window, dtype=jnp.int32)


def _apart(tokens: Float[Array, "B N W K_2_D"], layout: TierLayout) -> tuple[Array, Array]:
    apart = tokens.reshape(*tokens.shape[:-1], layout.shape.kv_heads, 2, layout.shape.head_dim)
    return apart[..., 0, :], apart[..., 1, :]
