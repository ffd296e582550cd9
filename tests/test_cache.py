# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The pytree: shapes without a zero-sized array, and the arithmetic of ring rows."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.cache import TierLayout, abstract_cache, append_tokens, init_cache, local_positions, local_row, nbytes
from qevict_jax.types import KVShape

LAYOUT = TierLayout(
    shape=KVShape(2, 2, 16, "float32"),
    window=4,
    sink=2,
    recent=5,
    ring=12,
    local_rows=16,
    full_windows=3,
    quant_windows=4,
    code_slots=7,
    scalar_row=24,
    bits=3,
    param_bits=8,
    ranked=True,
    event_mass=True,
)


def test_positions_of_rows_as_drawn_in_the_docstring():
    layout = dataclasses.replace(LAYOUT, local_rows=14)
    shown = local_positions(layout, jnp.array([1], jnp.int32))[0]
    assert shown.tolist() == [14, 15, 16, 17, 6, 7, 8, 9, 10, 11, 12, 13, 0, 1]


@pytest.mark.parametrize("sink", [0, 1, 5])
@pytest.mark.parametrize(("window", "ring"), [(4, 12), (8, 24), (16, 48)])
def test_every_recent_token_has_the_row_that_shows_it(sink, window, ring):
    """For any number of aged windows: the row of each position in reach shows that very position."""
    rows = ring + sink + 3
    layout = dataclasses.replace(LAYOUT, window=window, ring=ring, sink=sink, local_rows=rows)
    for aged in (0, 1, 2, 7, 100):
        shown = np.asarray(local_positions(layout, jnp.array([aged], jnp.int32)))[0]
        first = sink + aged * window
        reach = np.concatenate([np.arange(sink), first + np.arange(ring)])
        row = np.asarray(local_row(layout, jnp.asarray(reach, jnp.int32)))
        assert len(set(row.tolist())) == len(row) and row.max() < ring + sink
        np.testing.assert_array_equal(shown[row], reach)
        assert (shown[ring + sink :] == np.iinfo(np.int32).max).all()
        # a window that ages is one aligned slice
        slots = np.asarray(local_row(layout, jnp.asarray(first + np.arange(window), jnp.int32)))
        assert slots[0] % window == 0 and (np.diff(slots) == 1).all()


def test_append_writes_valid_tokens_only():
    local = jnp.zeros((2, 2, LAYOUT.local_rows, LAYOUT.row))
    tokens = jnp.ones((2, 3, LAYOUT.row))
    positions = jnp.array([[0, 1, 2], [13, 14, 15]], jnp.int32)
    valid = jnp.array([[True, True, True], [True, False, False]])
    out = np.asarray(append_tokens(local, LAYOUT, jnp.int32(1), tokens, positions, valid))
    assert not out[0].any(), "another layer"
    assert sorted(np.flatnonzero(out[1, 0].any(axis=1))) == [0, 12, 13]  # two sinks, then the first ring slot
    assert np.flatnonzero(out[1, 1].any(axis=1)).tolist() == [11]


@pytest.mark.parametrize("full_windows", [0, 3])
@pytest.mark.parametrize("code_slots", [0, 7])
def test_no_array_is_empty(full_windows, code_slots):
    """A tier of capacity 0 is no operand: one of size zero aborts the TPU compiler."""
    layout = dataclasses.replace(LAYOUT, full_windows=full_windows, code_slots=code_slots, ranked=code_slots > 0)
    cache = init_cache(layout, 2)
    assert all(x.size for x in jax.tree.leaves(cache))
    assert (cache.full is None, cache.full_window is None) == (full_windows == 0, full_windows == 0)
    assert (cache.codes is None, cache.dormant is None) == (code_slots == 0, code_slots == 0)
    for index in (cache.full_window, cache.code_window):
        assert index is None or (index == -1).all()
    chex.assert_trees_all_equal_shapes_and_dtypes(cache, abstract_cache(layout, 2))
    assert nbytes(cache) == nbytes(abstract_cache(layout, 2)) == sum(x.nbytes for x in jax.tree.leaves(cache))


def test_bytes_grow_with_the_batch_alone():
    assert nbytes(abstract_cache(LAYOUT, 6)) == 6 * nbytes(abstract_cache(LAYOUT, 1))
