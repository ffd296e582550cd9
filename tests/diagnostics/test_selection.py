# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Selections from reference scores."""

import numpy as np

from qevict_jax.diagnostics.selection import evicting_selection, top_windows, windows_of
from qevict_jax.policies.base import Tier

LETTERS = {".": Tier.UNSEEN, "e": Tier.EVICTED, "f": Tier.FULL, "r": Tier.RECENT, "s": Tier.SINK}


def tiers(text):
    return [[LETTERS[letter] for letter in word] for word in text.split()]


def test_sums_of_windows():
    score = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(windows_of(score, sink=1, window=3), [1 + 2 + 3, 4 + 5 + 6])
    np.testing.assert_array_equal(windows_of(score, sink=0, window=1), score)


def test_the_oracle_keeps_the_best_of_what_exists_and_the_older_of_equals():
    score = np.array([[1.0, 5.0, 5.0, 9.0], [1.0, 5.0, 5.0, 9.0]], np.float32)
    exists = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)
    np.testing.assert_array_equal(top_windows(score, exists, 1), [[0, 1, 0, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(top_windows(score, exists, 5), exists)


def test_token_eviction_by_hand():
    score = np.array([[9, 3, 1, 2, 5, 0, 0, 0], [9, 3, 8, 2, 5, 0, 0, 0], [9, 3, 8, 2, 1, 7, 0, 0]], np.float32)
    found = evicting_selection(score, prefill=5, sink=1, recent=2, window=1, keep=1)
    # position 2 is evicted at once and stays away however well it scores later
    assert found.tolist() == tiers("sferr... sfeerr.. sfeeerr.")


def test_window_eviction_by_hand():
    score = np.array([[0, 1, 1, 4, 4, 2, 2, 0, 0, 0, 0], [0, 1, 1, 4, 4, 9, 9, 0, 0, 0, 0]], np.float32)
    found = evicting_selection(score, prefill=7, sink=1, recent=2, window=2, keep=1)
    assert found.tolist() == tiers("seeffrr.... seeeeffrr..")
