# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Cosine and sine of window starts, side by side in one register: the cosine is a sine a quarter turn later.

The angle is the float32 product of position and frequency, as everywhere else. Whole turns come off in three steps
(Cody and Waite 1980): the first two parts of 2 pi have so few bits that their multiples are exact for up to 2^19
turns, 3 million positions. What is left is folded into a quarter turn either way, where an odd polynomial is exact to
float32.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

_TURN_HIGH = 6.25  # 5 bits
_TURN_MIDDLE = 17 / 512  # 5 bits
_TURN_LOW = 2 * np.pi - _TURN_HIGH - _TURN_MIDDLE
_TERMS = 5


def _sine_coefficients() -> list[float]:
    """c of ``sin(x) = x * sum(c[i] * x**(2i))`` for x up to a quarter turn."""
    in_square = np.polynomial.chebyshev.Chebyshev.interpolate(
        lambda square: np.sin(np.sqrt(square)) / np.sqrt(square), _TERMS - 1, domain=[0, (np.pi / 2) ** 2]
    )
    return [float(c) for c in in_square.convert(kind=np.polynomial.Polynomial).coef]


_SINE = _sine_coefficients()


def cos_sin_lanes(starts: Float[Array, "n D"], inv_freq: Float[Array, "1 D"]) -> Float[Array, "n D"]:
    """Cosines of the angles in the first half of the lanes, sines in the second.

    Args:
        starts: position of each row, on all lanes.
        inv_freq: the D/2 frequencies, twice.
    """
    lanes = lax.broadcasted_iota(jnp.int32, inv_freq.shape, 1)
    quarter = jnp.where(lanes < inv_freq.shape[1] // 2, np.float32(0.25), np.float32(0.0))
    angle = starts * inv_freq
    turns = jnp.floor(angle * np.float32(1 / (2 * np.pi)) + (quarter + 0.5))
    rest = angle - turns * np.float32(_TURN_HIGH) - turns * np.float32(_TURN_MIDDLE) - turns * np.float32(_TURN_LOW)
    rest = rest + quarter * np.float32(2 * np.pi)
    # sin(x) = sin(pi - x) = sin(-pi - x)
    folded = jnp.maximum(jnp.minimum(rest, np.float32(np.pi) - rest), np.float32(-np.pi) - rest)
    square = folded * folded
    total = jnp.full_like(square, _SINE[-1])
    for coefficient in _SINE[-2::-1]:
        total = total * square + np.float32(coefficient)
    return folded * total
