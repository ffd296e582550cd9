# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Admission of prompts of every awkward length: what goes to sinks, ring, full slots and codes, and what is dropped."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.admission import admit, aged_windows
from qevict_jax.cache import init_cache
from qevict_jax.ranking import RANKINGS
from tests.test_cache import LAYOUT
from tests.tier_contents import full_tokens, local_tokens, ring_tokens, slots, window_positions

SIZE = 40
SINK, RECENT, W = LAYOUT.sink, LAYOUT.recent, LAYOUT.window
LENGTHS = [0, 1, SINK, SINK + 1, SINK + RECENT, SINK + RECENT + W - 1, SINK + RECENT + W, 39, 40]
WINDOWS = -(-(SIZE - SINK) // W)


@cache
def admitted(ranking="cumulative", size=SIZE):
    """A cache of one row per length; the key of a token is its position, padding is huge; later windows score lower."""
    lengths = [min(n, size) for n in LENGTHS]
    tokens = np.broadcast_to(np.arange(size, dtype=np.float32)[:, None], (len(lengths), size, LAYOUT.row)).copy()
    length = np.array(lengths, np.int32)
    tokens[np.arange(size) >= length[:, None]] = 9e9
    windows = max(1, -(-(size - SINK) // W))
    mass = np.broadcast_to(1.0 / (1 + np.arange(windows, dtype=np.float32)), (len(lengths), windows))

    def both_layers(tokens, mass, length):
        cache = init_cache(LAYOUT, len(lengths))
        for layer in range(2):
            cache = admit(cache, jnp.int32(layer), tokens, mass, length, RANKINGS[ranking], jnp.zeros(8), bias=None)
        return cache.replace(length=length, aged=aged_windows(LAYOUT, length))

    return jax.device_get(jax.jit(both_layers)(tokens, mass, length))


@pytest.mark.parametrize("row", range(len(LENGTHS)), ids=[f"n{n}" for n in LENGTHS])
def test_every_token_where_it_belongs(row):
    held = admitted()
    n = LENGTHS[row]
    aged = max(0, (n - SINK - RECENT) // W)
    assert held.aged[row] == aged
    local = local_tokens(held, row)
    assert local.tolist() == [p for p in range(n) if p < SINK or p >= SINK + aged * W]
    for layer in range(2):
        np.testing.assert_array_equal(ring_tokens(held, layer, row, local)[:, 0, 0, 0], local)
        # nothing of the padding is anywhere
        assert np.abs(held.local[layer, row]).max() <= SIZE
        at = slots(held, layer, row)
        assert at.full == {window: window for window in range(min(aged, LAYOUT.full_windows))}
        assert set(at.codes) == set(range(aged)[LAYOUT.full_windows :][: LAYOUT.quant_windows])
        assert not at.dormant
        for window, slot in at.full.items():
            tokens = full_tokens(held, layer, row, slot)
            np.testing.assert_array_equal(tokens[:, 1, 1, 7], window_positions(LAYOUT, window))


@pytest.mark.parametrize("row", range(len(LENGTHS)), ids=[f"n{n}" for n in LENGTHS])
def test_scores_go_with_their_windows(row):
    held = admitted()
    aged = int(held.aged[row])
    for layer in range(2):
        at = slots(held, layer, row)
        for window, slot in at.full.items():
            np.testing.assert_allclose(held.score.full[layer, row, slot], 1 / (1 + window), rtol=1e-6)
        for window, slot in at.codes.items():
            np.testing.assert_allclose(held.score.quant[layer, row, slot], 1 / (1 + window), rtol=1e-6)
        for window in range(aged, aged + LAYOUT.ring_windows):
            wanted = 1 / (1 + window) if window < WINDOWS else 0.0
            np.testing.assert_allclose(held.score.ring[layer, row, window % LAYOUT.ring_windows], wanted, rtol=1e-6)


def test_keys_rank_windows_by_their_norm():
    """Keys grow with the position here, so the oldest windows have the smallest norm and rank first."""
    held = admitted("key_norm")
    row = LENGTHS.index(40)
    at = slots(held, 0, row)
    assert sorted(at.full) == [0, 1, 2]
    for window, slot in at.full.items():
        wanted = -4.0 * window_positions(LAYOUT, window).mean()  # the norm of 16 equal channels
        np.testing.assert_allclose(held.score.full[0, row, slot], wanted, rtol=1e-6)


@pytest.mark.parametrize("size", [1, SINK, SINK + RECENT + 1])
def test_a_bucket_too_short_for_any_window(size):
    held = admitted(size=size)
    assert not held.aged.any()
    assert (held.full_window == -1).all() and (held.code_window == -1).all()


def test_aged_windows():
    length = jnp.array([0, SINK + RECENT - 1, SINK + RECENT + W - 1, SINK + RECENT + W, 1000], jnp.int32)
    aged = partial(aged_windows, LAYOUT)(length)
    assert aged.tolist() == [0, 0, 0, 1, (1000 - SINK - RECENT) // W]
