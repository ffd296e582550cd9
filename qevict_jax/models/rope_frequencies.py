# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""RoPE frequencies of a model, with llama3 scaling, in the very float32 numbers that transformers computes.

At position 9,000 the last bit of a frequency is worth 5e-4 in an angle, so "nearly" is not enough: the power is taken
in float64 and rounded, the reciprocal in float32 (LOG.md). NumPy, because jnp's power differs in the last bits.
"""

import numpy as np
from jaxtyping import Float

from qevict_jax.models.config import ModelConfig


def inverse_frequencies(config: ModelConfig) -> Float[np.ndarray, "halfD"]:
    """Angle per position of each channel pair, float32."""
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    powers = np.power(np.float64(config.rope_theta), exponent.astype(np.float64)).astype(np.float32)
    inv_freq = np.float32(1) / powers
    scaling = config.rope_scaling
    if scaling is None:
        return inv_freq
    factor, low, high = (np.float32(x) for x in (scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor))
    context = np.float32(scaling.original_max_position)
    wavelength = np.float32(2 * np.pi) / inv_freq
    smooth = (context / wavelength - low) / (high - low)
    between = (np.float32(1) - smooth) * inv_freq / factor + smooth * inv_freq
    scaled = np.where(wavelength > context / low, inv_freq / factor, inv_freq)
    medium = (wavelength >= context / high) & (wavelength <= context / low)
    return np.where(medium, between, scaled).astype(np.float32)
