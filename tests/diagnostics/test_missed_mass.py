# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Future Missed Mass and Selection Churn by hand."""

import numpy as np
import pytest

from qevict_jax.diagnostics.missed_mass import future_missed_mass, selection_churn

# two prompt tokens, four steps; a row is a step's attention to positions 0..5
MASS = np.array(
    [
        [0.5, 0.3, 0.2, 0.0, 0.0, 0.0],
        [0.4, 0.2, 0.3, 0.1, 0.0, 0.0],
        [0.1, 0.6, 0.1, 0.1, 0.1, 0.0],
        [0.2, 0.1, 0.1, 0.2, 0.2, 0.2],
    ],
    np.float32,
)
LOST = np.array([[0, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], bool)


def test_by_hand():
    found = future_missed_mass(MASS, LOST, np.array([0, 2, 4]), prefill=2, horizon=2)
    # event 0: positions 0 and 1 exist, steps 1 and 2 follow; event 2: positions 0..3, steps 3 and 4; then nothing
    expected = [(0.3 + 0.2) / (0.8 + 0.6), (0.6 + 0.1 + 0.1 + 0.1) / (0.9 + 0.6), np.nan]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_horizon_ends_with_the_text():
    found = future_missed_mass(MASS, LOST[1:2], np.array([2]), prefill=2, horizon=32)
    np.testing.assert_allclose(found, [0.9 / 1.5], rtol=1e-6)


def test_sums_of_steps_give_the_same():
    sums = MASS.reshape(2, 2, 6).sum(axis=1)
    events = np.array([0, 2])
    one = future_missed_mass(MASS, LOST[:2], events, prefill=2, horizon=2)
    np.testing.assert_allclose(future_missed_mass(sums, LOST[:2], events, prefill=2, every=2, horizon=2), one)


def test_heads_are_apart_and_may_share_a_placement():
    heads = np.stack([MASS, MASS[:, ::-1]], axis=1)
    found = future_missed_mass(heads, LOST[:2, None], np.array([0, 2]), prefill=2, horizon=2)
    alone = [future_missed_mass(heads[:, h], LOST[:2], np.array([0, 2]), prefill=2, horizon=2) for h in (0, 1)]
    np.testing.assert_array_equal(found, np.stack(alone, axis=1))
    assert found[0, 0] != found[0, 1]


def test_nothing_lost_is_nothing_missed():
    found = future_missed_mass(MASS, np.zeros((4, 6), bool), np.arange(4), prefill=2)
    np.testing.assert_array_equal(found, np.zeros(4))


def test_events_between_sums_are_refused():
    with pytest.raises(ValueError, match="multiples of every=2"):
        future_missed_mass(MASS[:2], LOST[:1], np.array([1]), prefill=2, every=2)


def test_churn_by_hand():
    sets = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1]], bool)
    np.testing.assert_allclose(selection_churn(sets), [1 - 1 / 3, 0.0, 1.0])


def test_one_swap_of_116_tokens_is_the_papers_churn_of_r1():
    before = np.arange(200) < 116
    after = np.roll(before, 1)
    assert round(selection_churn(np.stack([before, after]))[0], 3) == 0.017


def test_churn_of_a_constant_set_is_zero_and_of_nothing_undefined():
    np.testing.assert_array_equal(selection_churn(np.ones((5, 2, 7), bool)), np.zeros((4, 2)))
    assert np.isnan(selection_churn(np.zeros((2, 3), bool))).all()
