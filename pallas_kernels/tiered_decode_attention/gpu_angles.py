# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Cosine and sine of ``position * inv_freq`` inside a kernel, from multiplications and additions.

Half the angle is brought into -pi/2 .. pi/2 by subtracting a multiple of pi in two parts, of which the first is so
short that its multiples are exact; two polynomials give its sine and cosine, and the double-angle formulas those of
the angle. About 17 instructions. Taken from a table they would cost a quarter of the bytes of an INT2 window, and from
the library's sine, which reduces angles that never occur, five times the instructions.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels.tiered_decode_attention.gpu_triton import nearest

_PI_HIGH = np.round(np.pi * 64) / 64  # 8 bits: a multiple below 2**16 is exact in float32
_PI_LOW = np.pi - _PI_HIGH


def _polynomial(function) -> list[float]:
    """Coefficients of a cubic in ``h**2`` for an even function of h on -pi/2 .. pi/2, error below 1e-5."""
    limit = (np.pi / 2) ** 2
    fit = np.polynomial.Chebyshev.interpolate(lambda x: function(np.sqrt(x)), 3, domain=[0, limit])
    return list(fit.convert(kind=np.polynomial.Polynomial).coef)


_SINE = _polynomial(lambda h: np.sinc(h / np.pi))  # sin(h) / h
_COSINE = _polynomial(np.cos)


def _evaluate(coefficients: list[float], x: Array) -> Array:
    result = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + np.float32(coefficient)
    return result


def cos_sin(
    positions: Int[Array, "n"], inv_freq: Float[Array, "halfD"], interpret: bool
) -> tuple[Float[Array, "n halfD"], Float[Array, "n halfD"]]:
    """Cosine and sine to 2e-5, at positions below 400,000; the angle itself is rounded to float32 as everywhere."""
    half = positions.astype(jnp.float32)[:, None] * (0.5 * inv_freq)[None, :]
    turns = nearest(half * np.float32(1 / np.pi), interpret)
    half = (half - turns * np.float32(_PI_HIGH)) - turns * np.float32(_PI_LOW)
    square = half * half
    sine, cosine = half * _evaluate(_SINE, square), _evaluate(_COSINE, square)
    return 1.0 - 2.0 * (sine * sine), 2.0 * (sine * cosine)
