# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""KVQuant's quantizer against its rule in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.float_bits import from_bits
from qevict_jax.quantizers.nuq import Codebook, decode_nuq_head, nearest, outlier_count, quantize_nuq, split_nuq
from tests.quick_compile import QUICK

BATCH, SIZE, HEADS, HEAD_DIM = 2, 7, 2, 16
POLES = {
    2: np.float32([-0.8, -0.2, 0.25, 0.9]),
    3: np.float32([-0.95, -0.6, -0.35, -0.1, 0.05, 0.3, 0.65, 0.9]),
    4: np.linspace(-0.96, 0.97, 16, dtype=np.float32),
}


def book(bits):
    random = np.random.default_rng(5)
    center, radius = random.normal(0, 3, (HEADS, HEAD_DIM)), random.uniform(0.5, 4, (HEADS, HEAD_DIM))
    radius[1, 3] = 0.0  # a channel that was constant when calibrated
    poles = jnp.asarray(POLES[bits])
    return Codebook(jnp.asarray(center, jnp.float32), jnp.asarray(radius, jnp.float32), poles, poles[::-1] * -1)


def some_tokens(seed=0):
    made = book(2)
    random = np.random.default_rng(seed)
    keys, values = random.uniform(-0.95, 0.95, (2, BATCH, SIZE, HEADS, HEAD_DIM))
    keys = keys * np.asarray(made.radius) + np.asarray(made.center)
    keys[0, 1, 1, 4] += 40.0
    values[0, 2] = 0.75  # all equal
    values[1, 3, 0, 2] = -300.0
    return np.float32(keys), np.float32(values)


@partial(jax.jit, static_argnames=("bits", "outliers"), compiler_options=QUICK)
def round_trip(keys, values, bits, outliers):
    """Keys and values ``[B, S, K, D]`` as they decode, and the 16-bit numbers that are stored."""
    made = book(bits)
    tokens = quantize_nuq(keys, values, made, outliers)
    center, radius = (jnp.tile(x, (BATCH, 1)) for x in (made.center, made.radius))

    def one(head, center, radius):
        return decode_nuq_head(head, center, radius, made.key_poles, made.value_poles)

    decoded = jax.vmap(one)(split_nuq(tokens, HEADS, HEAD_DIM), center, radius)
    back = (jnp.transpose(x.reshape(BATCH, HEADS, HEAD_DIM, SIZE), (0, 3, 1, 2)) for x in decoded)
    return *back, tokens.numbers


def rule(x, center, radius, poles, exact):
    """Nearest poles of a token's numbers ``[C]``, those at the indices ``exact`` kept in float16."""
    scaled = (x - center) / np.where(radius == 0, 1, radius)
    out = poles[np.abs(scaled[:, None] - poles).argmin(axis=1)] * radius + center
    out[exact] = np.float64(np.float16(x[exact]))
    return out


@pytest.mark.parametrize(("bits", "outliers"), [(2, 0), (2, 1), (3, 2), (4, 3)])
def test_reconstruction_is_that_of_float64(bits, outliers):
    keys, values = some_tokens()
    *ours, numbers = round_trip(keys, values, bits, outliers)
    made = jax.tree.map(np.float64, vars(book(bits)))
    stored = np.float64(from_bits(numbers[..., :2], "float16"))
    for at in np.ndindex(BATCH, SIZE):
        x = np.float64(keys[at]).ravel()
        center, radius = made["center"].ravel(), made["radius"].ravel()
        out_of_range = np.abs((x - center) / np.where(radius == 0, 1, radius))
        exact = np.argsort(-out_of_range, kind="stable")[:outliers]
        wanted = rule(x, center, radius, made["key_poles"], exact)
        np.testing.assert_allclose(np.ravel(ours[0][at]), wanted, rtol=1e-5, atol=1e-5)

        v = np.float64(values[at]).ravel()
        high, low = (outliers + 1) // 2, outliers // 2
        order = np.argsort(v, kind="stable")
        rest = v[order[low : len(v) - high]]
        middle, half = (rest.max() + rest.min()) / 2, (rest.max() - rest.min()) / 2
        np.testing.assert_allclose(stored[at], [middle, half], rtol=2**-11, atol=1e-7)
        # among equal values it does not matter which are kept
        exact = np.concatenate([order[:low], order[len(v) - high :]]).astype(int)
        wanted = rule(v, *stored[at], made["value_poles"], exact)
        if np.ptp(v):
            np.testing.assert_allclose(np.ravel(ours[1][at]), wanted, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_allclose(np.ravel(ours[1][at]), v, rtol=2**-11)


def test_outliers_are_exact_and_do_not_disturb_the_rest():
    keys, values = some_tokens()
    calm_keys, calm_values = keys.copy(), values.copy()
    calm_keys[0, 1, 1, 4] = np.asarray(book(2).center)[1, 4]
    calm_values[1, 3, 0, 2] = values[1, 3].min(initial=0, where=np.arange(HEAD_DIM) != 2)
    *wild, _ = round_trip(keys, values, 2, 2)
    *calm, _ = round_trip(calm_keys, calm_values, 2, 2)
    assert float(wild[0][0, 1, 1, 4]) == float(np.float16(keys[0, 1, 1, 4])) and wild[1][1, 3, 0, 2] == -300.0
    *bare, _ = round_trip(keys, values, 2, 0)
    assert abs(bare[0][0, 1, 1, 4] - keys[0, 1, 1, 4]) > 30  # clipped to its channel's range
    assert np.abs(bare[1][1, 3] - values[1, 3]).mean() > 20 * np.abs(wild[1][1, 3] - values[1, 3]).mean()
    others = np.ones((BATCH, SIZE, HEADS, HEAD_DIM), bool)
    others[0, 1] = False  # which of this token's calm keys is kept exactly differs
    np.testing.assert_array_equal(np.asarray(wild[0])[others], np.asarray(calm[0])[others])


def test_error_decreases_with_bits():
    keys, values = some_tokens(seed=3)
    errors = []
    for bits in (2, 3, 4):
        *ours, _ = round_trip(keys, values, bits, 1)
        errors.append([float(((x - y) ** 2).mean()) for x, y in zip(ours, (keys, values), strict=True)])
    assert errors[0][0] > errors[1][0] > errors[2][0] and errors[0][1] > errors[1][1] > errors[2][1]


def test_nearest_pole():
    poles = jnp.asarray(POLES[3])
    x = np.random.default_rng(0).uniform(-2, 2, 500).astype(np.float32)
    np.testing.assert_array_equal(nearest(jnp.asarray(x), poles), np.abs(x[:, None] - POLES[3]).argmin(axis=1))


def test_how_many_are_kept():
    assert [outlier_count(share, n) for share, n in ((0.01, 192), (0.01, 1024), (0.01, 100), (0.0, 64))] == [
        2,
        11,
        1,
        0,
    ]
