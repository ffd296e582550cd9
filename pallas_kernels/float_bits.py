# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""16-bit floats kept as their bits.

XLA's CPU backend runs a scatter into bfloat16 or float16 in float32: it converts the whole array, there and back, to
write one row (jaxlib 0.10: twice the array in temporary memory). Into uint16 it writes in place, on every platform.
So
whatever is updated in place is stored as bits, and becomes a number where it is read.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped


def stored_dtype(dtype: str) -> jnp.dtype:
    """Dtype of the array that holds floats of ``dtype``: uint16 for 16-bit floats, else the same."""
    return jnp.dtype("uint16") if jnp.dtype(dtype).itemsize == 2 else jnp.dtype(dtype)


def to_bits(x: Float[Array, "*n"], dtype: str) -> Shaped[Array, "*n"]:
    """Rounds to ``dtype`` and gives the stored form."""
    x = x.astype(dtype)
    return lax.bitcast_convert_type(x, jnp.uint16) if x.dtype.itemsize == 2 else x


def from_bits(x: Shaped[Array, "*n"], dtype: str) -> Float[Array, "*n"]:
    """The numbers of a stored form, in float32."""
    if x.dtype == jnp.uint16:
        x = lax.bitcast_convert_type(x, jnp.dtype(dtype))
    return x.astype(jnp.float32)
