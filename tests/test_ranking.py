# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Ranking functions by hand, and that the table is the one that configurations accept."""

import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax import config
from qevict_jax.ranking import RANKINGS

MASSES = [jnp.array([0.5, 0.1, 0.0]), jnp.array([0.2, 0.4, 0.0]), jnp.array([0.1, 0.1, 0.8])]


def after(name, start, events):
    """Scores after the masses of some events, through whichever function the ranking has."""
    ranking = RANKINGS[name]
    score = ranking.start(start)
    for mass in events:
        score = (ranking.event or ranking.observe)(score, mass)
    return score


def test_the_table():
    assert tuple(RANKINGS) == config.RANKINGS


def test_cumulative():
    np.testing.assert_allclose(after("cumulative", MASSES[0], MASSES[1:]), [0.8, 0.6, 0.8], rtol=1e-6)


def test_decay():
    wanted = [0.5 * 0.99**2 + 0.2 * 0.99 + 0.1, 0.1 * 0.99**2 + 0.4 * 0.99 + 0.1, 0.8]
    np.testing.assert_allclose(after("decay", MASSES[0], MASSES[1:]), wanted, rtol=1e-6)


def test_p_norm():
    """One strong event outweighs many weak ones of the same sum."""
    wanted = [0.5**3 + 0.2**3 + 0.1**3, 0.1**3 + 0.4**3 + 0.1**3, 0.8**3]
    np.testing.assert_allclose(after("p_norm", MASSES[0], MASSES[1:]), wanted, rtol=1e-5)


@pytest.mark.parametrize("name", ["decay", "p_norm"])
def test_steps_do_not_touch_scores_that_wait_for_events(name):
    np.testing.assert_array_equal(RANKINGS[name].observe(MASSES[0], MASSES[1]), MASSES[0])


def test_key_norm():
    """Minus the mean norm over tokens and heads; attention changes nothing, rotation neither."""
    keys = jnp.stack([jnp.full((4, 2, 9), 2.0), jnp.full((4, 2, 9), 1.0)])
    score = RANKINGS["key_norm"].keys(keys)
    np.testing.assert_allclose(score, [-6.0, -3.0], rtol=1e-6)
    np.testing.assert_array_equal(after("key_norm", MASSES[0], MASSES[1:]), 0.0)
    np.testing.assert_array_equal(RANKINGS["key_norm"].observe(score, MASSES[0][:2]), score)
