# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""RoPE frequencies by hand and bit by bit those of transformers' formula; scaling shows far out, not at position 0."""

import dataclasses

import numpy as np
import pytest

from qevict_jax.models.config import NAMED_SHAPES, RopeScaling
from qevict_jax.models.rope_frequencies import inverse_frequencies
from tests.random_model import CONFIGS

LLAMA = NAMED_SHAPES["llama-3.1-8b"]


def test_by_hand():
    config = dataclasses.replace(CONFIGS["plain"], head_dim=8, rope_theta=10_000.0)
    np.testing.assert_allclose(inverse_frequencies(config), [1, 0.1, 0.01, 0.001], rtol=1e-6)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6])
def test_unscaled(head_dim, theta):
    config = dataclasses.replace(CONFIGS["plain"], head_dim=head_dim, rope_theta=theta)
    ours = inverse_frequencies(config)
    assert ours.dtype == np.float32 and ours.shape == (head_dim // 2,)
    exact = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    np.testing.assert_allclose(ours, exact, rtol=3e-6)


def test_llama3_scaling_has_three_bands():
    """High frequencies stay, low ones are divided by the factor, those between are mixed."""
    plain = inverse_frequencies(dataclasses.replace(LLAMA, rope_scaling=None))
    scaled = inverse_frequencies(LLAMA)
    wavelength = 2 * np.pi / plain
    scaling = LLAMA.rope_scaling
    short = wavelength < scaling.original_max_position / scaling.high_freq_factor
    long = wavelength > scaling.original_max_position / scaling.low_freq_factor
    np.testing.assert_array_equal(scaled[short], plain[short])
    np.testing.assert_allclose(scaled[long], plain[long] / scaling.factor, rtol=1e-6)
    between = ~short & ~long
    assert short.sum() > 20 and long.sum() > 10 and between.sum() > 3
    assert (scaled[between] < plain[between]).all() and (scaled[between] > plain[between] / scaling.factor).all()
    assert (np.diff(scaled) < 0).all()


def test_scaling_is_a_question_of_long_positions():
    """Ignored, it changes nothing at position 0 and turns keys half a circle at 8,192."""
    plain = inverse_frequencies(dataclasses.replace(LLAMA, rope_scaling=None))
    turned = np.abs(plain - inverse_frequencies(LLAMA)) * 8192
    assert turned.max() > 0.5
    other = dataclasses.replace(LLAMA, rope_scaling=RopeScaling(1.0, 1.0, 4.0, 8192))
    np.testing.assert_allclose(inverse_frequencies(other), plain, rtol=1e-6)
