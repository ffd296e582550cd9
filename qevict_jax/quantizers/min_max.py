# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Asymmetric min-max quantization with 16-bit parameters.

    scale = (max - min) / (2^bits - 1),   code = clip(round((x - min) / scale), 0, 2^bits - 1),   x' = code*scale + min

A range of zero gives code 0 and no division. Parameters are float16: keys after RoPE still carry their bias, and an
offset of 500 would be rounded to 4 in bfloat16 and to 0.5 in float16. Codes are rounded against the parameters as
they are stored.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Float16, Int

_LARGEST = 65504.0  # of float16


def to_half(x: Float[Array, "*n"]) -> Float16[Array, "*n"]:
    """Rounds to float16; what is beyond its range becomes its largest number."""
    return jnp.clip(x, -_LARGEST, _LARGEST).astype(jnp.float16)


def scale_of(low: Float[Array, "*n"], high: Float[Array, "*n"], bits: int) -> Float16[Array, "*n"]:
    """The step between codes over a range."""
    return to_half((high - low) / ((1 << bits) - 1))


def encode(
    x: Float[Array, "*n"], scale: Float16[Array, "*#n"], low: Float16[Array, "*#n"], bits: int
) -> Int[Array, "*n"]:
    """int32 codes of numbers; parameters broadcast."""
    step, offset = scale.astype(jnp.float32), low.astype(jnp.float32)
    flat = step == 0
    code = jnp.round((x - offset) / jnp.where(flat, 1.0, step))
    return jnp.where(flat, 0.0, jnp.clip(code, 0, (1 << bits) - 1)).astype(jnp.int32)
