# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""KIVI's quantizer against its rule in float64, and what any min-max quantizer must do."""

from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qevict_jax.quantizers.grouped import channel_groups, decode_group_head, quantize_groups, split_groups
from tests.quantizers.float64_min_max import restored
from tests.quick_compile import QUICK

BATCH, COUNT, HEADS = 2, 3, 2


def round_trip(keys, values, bits):
    """Keys and values ``[B, N, g, K, D]`` as they decode, from their stored form."""
    batch, count, group, heads, head_dim = keys.shape
    *decoded, _, _ = _decoded(np.float32(keys), np.float32(values), bits)
    keys, values = (np.asarray(x).reshape(batch, heads, head_dim, count, group) for x in decoded)
    return np.transpose(keys, (0, 3, 4, 1, 2)), np.transpose(values, (0, 3, 4, 1, 2))


@partial(jax.jit, static_argnames="bits", compiler_options=QUICK)
def _decoded(keys, values, bits):
    group, heads = keys.shape[2:4]
    apart = split_groups(quantize_groups(keys, values, bits), heads)
    decoded = jax.vmap(lambda head: decode_group_head(head, bits, group))(apart)
    return *decoded, apart.key_params, apart.value_params


def some_tokens(group, head_dim, seed=0):
    """Random tokens; channels differ in scale and offset, one is constant and one token is all zeros."""
    random = np.random.default_rng(seed)
    keys, values = random.normal(size=(2, BATCH, COUNT, group, HEADS, head_dim))
    keys = keys * random.uniform(0.1, 5, (HEADS, head_dim)) + random.normal(0, 20, (HEADS, head_dim))
    keys[:, :, :, 0, 1] = 3.25
    values[0, 1, 2] = 0.0
    return np.float64(np.float32(keys)), np.float64(np.float32(values))


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize(("group", "head_dim"), [(4, 16), (8, 8), (8, 12), (32, 16)])
def test_reconstruction_is_that_of_float64(bits, group, head_dim):
    """Also where the group does not divide the channels, or is larger than they are many."""
    keys, values = some_tokens(group, head_dim)
    ours = round_trip(keys, values, bits)
    key_params, value_params = (np.float64(x) for x in _decoded(np.float32(keys), np.float32(values), bits)[2:])
    expected = np.zeros_like(keys), np.zeros_like(values)
    for at in np.ndindex(BATCH, COUNT, HEADS):
        b, n, k = at
        head = b * HEADS + k
        for d in range(head_dim):
            expected[0][b, n, :, k, d] = restored(keys[b, n, :, k, d], bits, key_params[head, :, d, n])
        for token in range(group):
            for i, start in enumerate(range(0, head_dim, group)):
                part = (b, n, token, k, slice(start, start + group))
                expected[1][part] = restored(values[part], bits, value_params[head, :, i, n * group + token])
    for x, y in zip(ours, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_constant_channels_and_zero_tokens_are_exact():
    keys, values = some_tokens(8, 16)
    ours = round_trip(keys, values, 2)
    np.testing.assert_array_equal(ours[0][:, :, :, 0, 1], 3.25)
    np.testing.assert_array_equal(ours[1][0, 1, 2], 0.0)


@given(seed=st.integers(0, 2**16), outlier=st.sampled_from([0.0, 50.0, -900.0]))
@settings(max_examples=12, deadline=None)
def test_no_number_is_off_by_more_than_half_a_step_and_bits_help(seed, outlier):
    """A single outlier widens the steps of its own channel and of its own token's channel group, and no other."""
    keys, values = some_tokens(8, 16, seed)
    keys[1, 2, 3, 1, 5] += outlier
    values[1, 2, 3, 1, 5] += outlier
    errors = {}
    for bits in (2, 3, 4):
        restored_keys, restored_values = round_trip(keys, values, bits)
        assert np.isfinite(restored_keys).all() and np.isfinite(restored_values).all()
        key_error, value_error = np.abs(restored_keys - keys), np.abs(restored_values - values)
        spans = np.ptp(keys, axis=2), np.ptp(values.reshape(*values.shape[:-1], 2, 8), axis=-1)
        lowest = keys.min(axis=2), values.reshape(*values.shape[:-1], 2, 8).min(axis=-1)
        worst = key_error.max(axis=2), value_error.reshape(*values.shape[:-1], 2, 8).max(axis=-1)
        for error, span, low in zip(worst, spans, lowest, strict=True):
            # half a step, the rounding of the offset, and of the scale at the highest code
            assert (error <= span / (2**bits - 1) / 2 + 2**-11 * (np.abs(low) + span) + 1e-6).all()
        # where everything else is one code, bits cannot help: the rounding of the scale decides
        key_error[1, 2, :, 1, 5], value_error[1, 2, 3, 1, :8] = 0, 0
        errors[bits] = (key_error**2).mean(), (value_error**2).mean()
    for part in (0, 1):
        assert errors[4][part] < errors[3][part] < errors[2][part]


def test_the_smaller_last_group_has_its_own_range():
    """Head_dim 12 in groups of 8: four channels of the last group, and no zeros of a padding among them."""
    values = np.full((1, 1, 8, 1, 12), 1.0)
    values[..., 8:] = np.array([5.0, 6.0, 7.0, 8.0])
    ours = round_trip(values, values, 2)[1]
    np.testing.assert_array_equal(ours, values)
    assert channel_groups(8, 12) == 2 and channel_groups(128, 64) == 1
