# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Cosine and sine of ``position * inv_freq`` inside a kernel.

The angle is brought into -pi .. pi by subtracting a multiple of 2 pi in two parts, of which the first is so short that
its multiples are exact. Then the instructions of the chip do: eight in all, of which two run at a low rate. Taken from
a table, cosine and sine would cost a quarter of the bytes of an INT2 window, and the library's functions, which reduce
angles that never occur, ten times the instructions.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels.tiered_decode_attention import gpu_triton as triton

_TURN = 2 * np.pi
_HIGH = np.round(_TURN * 32) / 32  # 8 bits: a multiple below 2**16 is exact in float32
_LOW = _TURN - _HIGH


def cos_sin(
    positions: Int[Array, "n"], inv_freq: Float[Array, "halfD"], interpret: bool
) -> tuple[Float[Array, "n halfD"], Float[Array, "n halfD"]]:
    """Cosine and sine to 1e-5, at positions below 400,000; the angle itself is rounded to float32 as everywhere."""
    angle = positions.astype(jnp.float32)[:, None] * inv_freq[None, :]
    turns = triton.nearest(angle * np.float32(1 / _TURN), interpret)
    angle = (angle - turns * np.float32(_HIGH)) - turns * np.float32(_LOW)
    return triton.cos_sin(angle, interpret)
