# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Shares of a whole that may be empty."""

import numpy as np
from jaxtyping import Float


def share(part: Float[np.ndarray, "*n"], whole: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """``part / whole``, NaN where the whole is not positive."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)
