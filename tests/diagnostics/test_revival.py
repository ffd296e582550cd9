# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Global LIR, lagged transitions and moves by hand."""

import numpy as np
import pytest

from qevict_jax.diagnostics.revival import (
    Episodes,
    count_moves,
    global_lir,
    inactive_episodes,
    lagged_transitions,
    transition_counts,
)
from qevict_jax.policies.base import Tier

# a column is a window, a row an event; "." does not exist yet
TRACE = """
1 0 0 .
0 0 0 .
0 1 0 0
1 0 0 1
0 0 0 1
"""
ROWS = [line.split() for line in TRACE.split("\n") if line]
EXISTS = np.array([[x != "." for x in row] for row in ROWS])
SELECTED = np.array([[x == "1" for x in row] for row in ROWS])


def test_episodes_by_hand():
    found = inactive_episodes(SELECTED, EXISTS)
    # window 0: two events, back; one, open. 1: two, back; two, open. 2: five, open. 3: one, back
    expected = [(2, True), (1, False), (2, True), (2, False), (5, False), (1, True)]
    assert sorted(zip(found.length.tolist(), found.returned.tolist(), strict=True)) == sorted(expected)


@pytest.mark.parametrize("threshold, eligible, returned, median", [(1, 6, 3, 2.0), (2, 4, 2, 1.0), (3, 1, 0, np.nan)])
def test_lir_by_hand(threshold, eligible, returned, median):
    found = global_lir([inactive_episodes(SELECTED, EXISTS)], threshold)
    assert (found.eligible, found.returned, found.traces) == (eligible, returned, 1)
    assert found.rate == returned / eligible and found.low == found.high == found.rate
    np.testing.assert_equal(found.median_return, median)


def test_the_interval_comes_from_differences_between_traces():
    def trace(returned):
        return Episodes(np.full(10, 4), np.arange(10) < returned)

    same, mixed = global_lir([trace(3)] * 20, 2), global_lir([trace(0), trace(6)] * 10, 2)
    assert same.rate == mixed.rate == pytest.approx(0.3)
    assert same.low == same.high == same.rate
    # the standard error of a mean of 20 values that are 0 or 0.6 is 0.067
    assert mixed.low == pytest.approx(0.3 - 1.96 * 0.067, abs=0.02)
    assert mixed.high == pytest.approx(0.3 + 1.96 * 0.067, abs=0.02)


def test_no_return_is_zero_and_nothing_eligible_undefined():
    assert global_lir([Episodes(np.array([3, 5]), np.zeros(2, bool))], 2).rate == 0.0
    assert np.isnan(global_lir([Episodes(np.array([1]), np.zeros(1, bool))], 2).rate)


def test_transitions_by_hand():
    counts = transition_counts(SELECTED, EXISTS, 2)
    # pairs two events apart: window 0: 10 01 00; 1: 01 00 10; 2: 00 00 00; 3: 01
    np.testing.assert_array_equal(counts, [[5, 3], [2, 0]])
    np.testing.assert_allclose(lagged_transitions(counts), [[5 / 8, 3 / 8], [1.0, 0.0]])
    assert np.isnan(lagged_transitions(np.array([[4, 1], [0, 0]]))[1]).all()


def test_moves_by_hand():
    placement = np.array(
        [
            [Tier.SINK, Tier.FULL, Tier.QUANTIZED, Tier.RECENT, Tier.RECENT, Tier.UNSEEN],
            [Tier.SINK, Tier.QUANTIZED, Tier.FULL, Tier.EVICTED, Tier.RECENT, Tier.RECENT],
            [Tier.SINK, Tier.EVICTED, Tier.QUANTIZED, Tier.EVICTED, Tier.QUANTIZED, Tier.RECENT],
        ],
        np.int8,
    )
    moves = count_moves(placement)
    assert moves.promotions.tolist() == [1, 0]
    assert moves.demotions.tolist() == [1, 1]
    assert moves.evictions.tolist() == [1, 1]
