# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A calibration for the tiny random models: made up, but different in every layer, head and channel."""

import atexit
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from qevict_jax.models.config import ModelConfig
from qevict_jax.quantizers.calibration_file import FILE, Calibration

OUTLIERS = 0.06


@cache
def calibration(config: ModelConfig) -> Calibration:
    """Ranges that most keys of these models are in, and uneven poles."""
    random = np.random.default_rng(11)
    shape = (config.layers, config.kv_heads, config.head_dim)
    low, high = -random.uniform(1.5, 4, shape), random.uniform(1.5, 4, shape)
    poles = [{bits: _poles(random, config.layers, 1 << bits) for bits in (2, 3, 4)} for _ in ("keys", "values")]
    return Calibration(np.float32([low, high]), *poles, OUTLIERS, "", {})


@cache
def calibration_file(config: ModelConfig) -> str:
    """The same as a file, gone when the tests are."""
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    path = Path(directory.name) / FILE
    calibration(config).save(path)
    return str(path)


def _poles(random: np.random.Generator, layers: int, count: int) -> np.ndarray:
    even = (np.arange(count) + 0.5) * 2 / count - 1
    return np.float32(even + random.uniform(-0.3, 0.3, (layers, count)) / count)
