# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks and places against sorts and loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qevict_jax.token_selection import count_by_group, places, ranks

SIZE = 12
# few different scores, so that many are equal
SCORES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=SIZE, max_size=SIZE)
MASKS = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)
GROUPS = st.lists(st.integers(0, 2), min_size=SIZE, max_size=SIZE)


def expected_ranks(score, valid, first, group):
    """Of valid entries; sorted by (pinned, score, order) within each group."""
    place = {}
    for g in set(group):
        members = [i for i in range(SIZE) if valid[i] and group[i] == g]
        for at, i in enumerate(sorted(members, key=lambda i: (not first[i], -score[i], i))):
            place[i] = at
    return place


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SCORES, MASKS, MASKS, GROUPS, st.booleans())
def test_ranks(score, valid, first, group, grouped):
    score, valid, first, group = (np.array(x) for x in (np.float32(score), valid, first, np.int32(group)))
    made = np.asarray(jax.jit(ranks)(score, valid, first, group if grouped else None))
    groups = group if grouped else np.zeros_like(group)
    for i, place in expected_ranks(score, valid, first, groups.tolist()).items():
        assert made[i] == place
    if not grouped:
        assert sorted(made[~valid].tolist()) == list(range(valid.sum(), SIZE))


def test_a_score_that_ties_the_largest_number_does_not_pass_a_pinned_entry():
    """Protected tokens once were those with the highest score of all, and a tie evicted them (kvpress#226)."""
    most = np.finfo(np.float32).max
    score = np.float32([most, most, most, 0.0])
    first = np.array([False, False, False, True])
    assert jax.jit(ranks)(score, np.ones(4, bool), first).tolist() == [1, 2, 3, 0]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(MASKS, GROUPS, MASKS, GROUPS)
def test_places(arrives, arrival_pool, free, row_pool):
    """The j-th arrival of a pool has the j-th free row of that pool, and no row is given twice."""
    arrives, free = np.array(arrives), np.array(free)
    pools, rows = np.int32(arrival_pool), np.int32(row_pool)
    made = np.asarray(jax.jit(places, static_argnames="pools")(arrives, pools, free, rows, pools=3))
    for pool in range(3):
        wanting, offered = np.flatnonzero(arrives & (pools == pool)), np.flatnonzero(free & (rows == pool))
        given = made[wanting]
        assert given[: len(offered)].tolist() == offered[: len(wanting)].tolist()
        assert np.all(given[len(offered) :] == SIZE)
    assert np.all(made[~arrives] == SIZE)


@pytest.mark.parametrize("groups", [1, 3])
def test_counts(groups):
    rng = np.random.default_rng(0)
    member, group = rng.random(40) < 0.5, rng.integers(0, groups, 40).astype(np.int32)
    made = count_by_group(jnp.asarray(member), jnp.asarray(group), groups)
    assert made.tolist() == [int((member & (group == g)).sum()) for g in range(groups)]
