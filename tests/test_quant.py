# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Quantization of windows against float64, and the channels that break naive versions: constant, huge, zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.quantized_windows import dequantize
from qevict_jax.quant import quantize_windows
from tests import float64_quant
from tests.quick_compile import QUICK

_quantize = jax.jit(quantize_windows, static_argnames=("bits", "param_bits"), compiler_options=QUICK)
_dequantize = jax.jit(dequantize, static_argnames=("kv_heads", "bits", "window"), compiler_options=QUICK)


def there_and_back(keys, values, bits, param_bits):
    """``[Q, W, K, D]`` after quantization."""
    made = _quantize(jnp.asarray(keys[None]), jnp.asarray(values[None]), bits=bits, param_bits=param_bits)
    found = _dequantize(made, kv_heads=keys.shape[2], bits=bits, window=keys.shape[1])
    return made, np.asarray(found[0][0]), np.asarray(found[1][0])


def windows(shape=(3, 8, 2, 16), seed=0):
    """Random keys and values ``[Q, W, K, D]``; channels of the keys differ in offset and spread."""
    random = np.random.default_rng(seed)
    spread, offset = random.gamma(2, 1, shape[2:]), random.normal(0, 3, shape[2:])
    keys = random.normal(size=shape) * spread + offset
    return np.float32(keys), np.float32(random.normal(size=shape))


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize(("window", "param_bits"), [(4, 8), (8, 16), (16, 8), (32, 16)])
def test_against_float64(bits, param_bits, window):
    keys, values = windows((2, window, 3, 16))
    made, our_keys, our_values = there_and_back(keys, values, bits, param_bits)
    for slot in range(2):
        wanted = float64_quant.quantize(np.float64(keys[slot]), np.float64(values[slot]), bits, param_bits)
        codes = jax.tree.map(lambda x, slot=slot: np.asarray(x[0, slot]), made)
        stored = float64_quant.decode(codes.codes, codes.key_params, codes.scalars, window, 3, bits)
        assert np.abs(stored.key_codes - wanted.key_codes).max() <= 1
        assert np.mean(stored.key_codes == wanted.key_codes) > 0.98
        assert np.mean(stored.value_codes == wanted.value_codes) > 0.98
        np.testing.assert_allclose(our_keys[slot], stored.keys, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(our_values[slot], stored.values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("head_dim", "param_bits"), [(64, 8), (80, 16), (96, 8), (128, 16), (256, 8)])
def test_every_head_dim_and_fewer_errors_with_more_bits(param_bits, head_dim):
    """Half a step is the worst error of a code; a parameter adds its own rounding."""
    keys, values = windows((1, 8, 2, head_dim))
    errors = []
    for bits in (2, 3, 4):
        _, our_keys, our_values = there_and_back(keys, values, bits, param_bits)
        step = (keys.max(axis=1) - keys.min(axis=1)) / (2**bits - 1)
        span = np.abs(keys).max(axis=(0, 1, 3))[None, None, :, None]
        assert (np.abs(our_keys - keys) <= 0.5 * step[:, None] + 0.02 * span).all()
        value_span = values.max(axis=-1, keepdims=True) - values.min(axis=-1, keepdims=True)
        assert (np.abs(our_values - values) <= (0.5 / (2**bits - 1) + 0.01) * value_span + 0.02).all()
        errors.append(np.mean((our_keys - keys) ** 2) + np.mean((our_values - values) ** 2))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


@pytest.mark.parametrize("param_bits", [8, 16])
@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("constant", [0.0, 1.0, -2.5])
def test_constant_windows(bits, param_bits, constant):
    """A range of zero is no division by zero: the number itself comes back, here one that bfloat16 holds."""
    keys = np.full((2, 8, 2, 16), constant, np.float32)
    _, our_keys, our_values = there_and_back(keys, keys, bits, param_bits)
    np.testing.assert_array_equal(our_keys, keys)
    np.testing.assert_array_equal(our_values, keys)


def test_a_constant_channel_among_others():
    keys, values = windows()
    keys[:, :, 0, 3], keys[:, :, 1, 5] = 0.0, 4.0
    values[:, 2] = 0.0
    for param_bits in (8, 16):
        _, our_keys, our_values = there_and_back(keys, values, 2, param_bits)
        assert np.isfinite(our_keys).all() and np.isfinite(our_values).all()
        np.testing.assert_array_equal(our_values[:, 2], 0.0)
        if param_bits == 16:
            np.testing.assert_array_equal(our_keys[:, :, 0, 3], 0.0)
            np.testing.assert_array_equal(our_keys[:, :, 1, 5], 4.0)


def test_extremes_come_back_exactly_where_parameters_are_exact():
    """The lowest and the highest token of a channel have the first and the last code."""
    keys = np.float32([[0, 3, 1, 2, 0, 3, 1, 2]]).reshape(1, 8, 1, 1) * np.ones((1, 8, 1, 4), np.float32)
    _, our_keys, _ = there_and_back(keys, keys, 2, 16)
    np.testing.assert_array_equal(our_keys, keys)


def test_heads_do_not_share_parameters():
    """A head a thousand times larger leaves the others as they were."""
    keys, values = windows()
    for param_bits in (8, 16):
        _, alone, _ = there_and_back(keys, values, 3, param_bits)
        loud = keys.copy()
        loud[:, :, 1] *= 1000
        _, beside, _ = there_and_back(loud, values, 3, param_bits)
        np.testing.assert_array_equal(beside[:, :, 0], alone[:, :, 0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_input_is_computed_in_float32(dtype):
    keys, values = (jnp.asarray(x[None], dtype) for x in windows())
    ours = _quantize(keys, values, bits=3, param_bits=16)
    wide = _quantize(keys.astype(jnp.float32), values.astype(jnp.float32), bits=3, param_bits=16)
    jax.tree.map(np.testing.assert_array_equal, ours, wide)
