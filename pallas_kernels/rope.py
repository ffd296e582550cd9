# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding with the half rotation of Hugging Face models (arXiv:2104.09864).

Channel i turns with channel i + D/2 by the angle ``position * inv_freq[i]``, computed in float32: a bfloat16 angle
would round position 257 to 256.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def cos_sin(
    positions: Int[Array, "*n"], inv_freq: Float[Array, "halfD"]
) -> tuple[Float[Array, "*n halfD"], Float[Array, "*n halfD"]]:
    """Cosine and sine of the angles at integer positions."""
    angles = positions.astype(jnp.float32)[..., None] * inv_freq
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "*n heads D"], cos: Float[Array, "*n halfD"], sin: Float[Array, "*n halfD"]
) -> Float[Array, "*n heads D"]:
    """Turns every head of a token by the token's angles; float32. With ``-sin`` it turns back."""
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
