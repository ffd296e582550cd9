# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""ZipCache's quantizer against its rule in float64, when it is filled at once and when tokens come later."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.float_bits import from_bits
from qevict_jax.quantizers.channel_separable import SeparableTokens, add_tokens, decode_separable_head, split_tokens
from qevict_jax.quantizers.code_rows import row_planes, unpack_rows
from tests.quantizers.float64_min_max import restored
from tests.quick_compile import QUICK

BATCH, HEADS, HEAD_DIM, SLOTS = 2, 2, 16, 12


def empty(bits):
    codes = tuple(jnp.zeros((BATCH, SLOTS, HEADS * 2 * n), dtype) for n, dtype in row_planes(bits, HEAD_DIM))
    channels = jnp.zeros((BATCH, 3 * HEADS * HEAD_DIM), jnp.uint16)
    return SeparableTokens(codes, channels, jnp.zeros((BATCH, 2 * SLOTS), jnp.uint16))


add = partial(jax.jit, static_argnames="bits", compiler_options=QUICK)(add_tokens)


@partial(jax.jit, static_argnames="bits", compiler_options=QUICK)
def decode(tokens, bits):
    """Keys and values ``[B, S, K, D]``."""
    keys, values = jax.vmap(lambda head: decode_separable_head(head, bits))(split_tokens(tokens, HEADS))
    return tuple(jnp.transpose(x.reshape(BATCH, HEADS, HEAD_DIM, SLOTS), (0, 3, 1, 2)) for x in (keys, values))


def some_tokens(count, seed=0, scale=1.0):
    """Random tokens; channels of values differ in size, and one channel of each is constant."""
    random = np.random.default_rng(seed)
    keys, values = scale * random.normal(size=(2, BATCH, count, HEADS, HEAD_DIM))
    values *= random.uniform(0.1, 30, (HEADS, HEAD_DIM))
    keys[:, :, 1, 2], values[:, :, 0, 3] = 1.5, 0.0
    return np.float32(keys), np.float32(values)


def channels(tokens):
    """Scale, offset and unit of every channel, ``[B, 3, K, D]``."""
    return np.float64(from_bits(tokens.channels, "float16")).reshape(BATCH, 3, HEADS, HEAD_DIM)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_reconstruction_is_that_of_float64(bits):
    """Row 0 has ten tokens and row 1 six, each ranges of its own; garbage behind them changes nothing."""
    keys, values = some_tokens(10)
    count = np.array([10, 6])
    keys[1, 6:], values[1, 6:] = np.nan, 1e30
    at = np.where(np.arange(10) < count[:, None], np.arange(10), SLOTS)
    made = add(empty(bits), keys, values, at, np.zeros(BATCH, np.int32), bits=bits)
    ours = decode(made, bits)
    scale, low, unit = np.moveaxis(channels(made), 1, 0)
    slots = np.float64(from_bits(made.slots, "float16")).reshape(BATCH, 2, SLOTS)
    for row, n in enumerate(count):
        for k, d in np.ndindex(HEADS, HEAD_DIM):
            wanted = restored(np.float64(keys[row, :n, k, d]), bits, np.array([scale[row, k, d], low[row, k, d]]))
            np.testing.assert_allclose(ours[0][row, :n, k, d], wanted, rtol=1e-5, atol=1e-5)
            largest = np.sqrt(np.abs(np.float64(values[row, :n, k, d])).max())
            assert unit[row, k, d] == pytest.approx(largest or 1.0, rel=2**-10)
        for s in range(n):
            scaled = np.float64(values[row, s]) / unit[row]
            wanted = restored(scaled, bits, slots[row, :, s]) * unit[row]
            np.testing.assert_allclose(ours[1][row, s], wanted, rtol=1e-4, atol=1e-4)


def test_error_decreases_with_bits_and_constants_are_exact():
    keys, values = some_tokens(SLOTS, seed=1)
    errors = []
    for bits in (2, 3, 4):
        at = np.broadcast_to(np.arange(SLOTS), (BATCH, SLOTS))
        ours = decode(add(empty(bits), keys, values, at, np.zeros(BATCH, np.int32), bits=bits), bits)
        np.testing.assert_array_equal(ours[0][:, :, 1, 2], 1.5)
        errors.append([float(((x - y) ** 2).mean()) for x, y in zip(ours, (keys, values), strict=True)])
    assert errors[0][0] > errors[1][0] > errors[2][0] and errors[0][1] > errors[1][1] > errors[2][1]


def test_later_tokens_rewrite_only_channels_whose_range_they_widen():
    """Row 0 gets four more tokens, of which some channels exceed the old range; row 1 gets none."""
    bits = 4
    keys, values = some_tokens(8, seed=2)
    at = np.broadcast_to(np.arange(8), (BATCH, 8))
    old = add(empty(bits), keys, values, at, np.zeros(BATCH, np.int32), bits=bits)
    more_keys, more_values = some_tokens(4, seed=3)
    later = np.stack([np.arange(8, 12), np.full(4, SLOTS)])
    new = add(old, more_keys, more_values, later, np.full(BATCH, 8, np.int32), bits=bits)

    low, high = keys[0].min(axis=0), keys[0].max(axis=0)
    widened = (more_keys[0] < low).any(axis=0) | (more_keys[0] > high).any(axis=0)
    changed = (channels(old)[0] != channels(new)[0])[:2].any(axis=0)
    assert 3 < widened.sum() < widened.size - 3
    assert (changed <= widened).all() and changed.sum() >= widened.sum() - 2  # rounding may hide a small excess
    (old_keys, old_values), (new_keys, new_values) = (unpack_rows(x.codes, bits, HEADS, HEAD_DIM) for x in (old, new))
    np.testing.assert_array_equal(np.asarray(old_keys)[0, :8, ~changed], np.asarray(new_keys)[0, :8, ~changed])
    np.testing.assert_array_equal(old_values[0, :8], new_values[0, :8])
    np.testing.assert_array_equal(channels(old)[:, 2], channels(new)[:, 2])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[1], y[1]), old, new)

    ours = decode(new, bits)
    together = np.concatenate([keys[0], more_keys[0]])
    step = np.ptp(together, axis=0) / 15
    # a rewritten code is off by half of an old and half of a new step
    assert (np.abs(ours[0][0] - together) <= 1.02 * step + 1e-2).all()
    unit = channels(new)[0, 2]
    spans = np.ptp(more_values[0] / unit, axis=(1, 2))[:, None, None]
    assert (np.abs(ours[1][0, 8:] - more_values[0]) <= 0.52 * spans / 15 * unit).all()


def test_an_empty_class_takes_its_parameters_from_the_first_tokens_that_come():
    bits = 3
    keys, values = some_tokens(5, seed=4)
    nothing = np.full((BATCH, 5), SLOTS)
    none = add(empty(bits), keys, values, nothing, np.zeros(BATCH, np.int32), bits=bits)
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), none)
    at = np.broadcast_to(np.arange(5), (BATCH, 5))
    zero = np.zeros(BATCH, np.int32)
    late, at_once = (add(x, keys, values, at, zero, bits=bits) for x in (none, empty(bits)))
    jax.tree.map(np.testing.assert_array_equal, late, at_once)
