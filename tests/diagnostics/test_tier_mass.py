# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Tier mass, score agreement and mass ratio by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qevict_jax.diagnostics.tier_mass import mass_ratio, score_agreement, tier_mass
from qevict_jax.policies.base import Tier


def test_shares_by_hand():
    score = np.array([9.0, 1.0, 2.0, 3.0, 4.0, 0.0], np.float32)
    placement = np.array([Tier.SINK, Tier.FULL, Tier.QUANTIZED, Tier.EVICTED, Tier.RECENT, Tier.UNSEEN], np.int8)
    shares = tier_mass(score, placement)
    expected = {Tier.FULL: 0.1, Tier.QUANTIZED: 0.2, Tier.EVICTED: 0.3, Tier.RECENT: 0.4}
    assert {tier: round(float(share), 12) for tier, share in shares.items()} == expected


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_shares_add_up_to_one(seed):
    random = np.random.default_rng(seed)
    placement = random.integers(1, len(Tier), (5, 1, 20)).astype(np.int8)
    placement[:, :, 0] = Tier.FULL
    score = random.exponential(size=(5, 3, 20)).astype(np.float32)
    total = sum(tier_mass(score, placement).values())
    np.testing.assert_allclose(total, np.ones((5, 3)), rtol=1e-12)


def test_without_windows_there_are_no_shares():
    assert all(np.isnan(x) for x in tier_mass(np.ones(3, np.float32), np.full(3, Tier.SINK, np.int8)).values())


def test_agreement_and_ratio_by_hand():
    ours, theirs = np.array([[3.0, 7.0, 4.0]]), np.array([[4.0, 5.0, 3.0]])
    members = np.array([[True, False, True]])
    np.testing.assert_allclose(score_agreement(ours, theirs, members), [24 / 25])
    np.testing.assert_allclose(mass_ratio(ours, theirs, members), [1.0])
    np.testing.assert_allclose(mass_ratio(0.5 * ours, theirs, members), [0.5])


def test_equal_scores_agree_whatever_their_scale():
    scores, members = np.array([1.0, 5.0, 2.0]), np.ones(3, bool)
    np.testing.assert_allclose(score_agreement(scores, 3 * scores, members), 1.0)
    assert mass_ratio(scores, scores, members) == 1.0


def test_an_empty_tier_has_neither():
    scores, members = np.ones(3), np.zeros(3, bool)
    assert np.isnan(score_agreement(scores, scores, members)) and np.isnan(mass_ratio(scores, scores, members))
