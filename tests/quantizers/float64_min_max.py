# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The min-max rule of `qevict_jax.quantizers.min_max` in plain NumPy and float64, on one set of numbers at a time."""

import numpy as np


def parameters(x: np.ndarray, bits: int) -> tuple[float, float]:
    """Scale and offset of a set of numbers before they are rounded to float16."""
    return (x.max() - x.min()) / (2**bits - 1), x.min()


def restored(x: np.ndarray, bits: int, stored: np.ndarray) -> np.ndarray:
    """What a set of numbers decodes to with scale and offset as they are stored.

    These must be the rule's own, rounded to float16; a tie may be rounded either way.
    """
    for found, exact in zip(stored, parameters(x, bits), strict=True):
        assert abs(found - exact) <= 1.001 * 2**-11 * abs(exact) + 2**-25, (found, exact)
    scale, low = stored
    if scale == 0:
        return np.full(x.shape, low)
    return np.clip(np.round((x - low) / scale), 0, 2**bits - 1) * scale + low
