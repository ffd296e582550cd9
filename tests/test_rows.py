# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A row is found in every array of every policy's cache, and replaced without touching another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.policies import make_policy
from qevict_jax.rows import RowAxis, put_row, row_axes
from tests.policy_table import CASES
from tests.random_model import CONFIGS


@pytest.mark.parametrize("name", CASES)
def test_every_array_of_every_policy_belongs_to_rows(name):
    case = CASES[name]
    shape = CONFIGS[case.model].kv_shape(case.config.kv_dtype)
    policy = make_policy(shape, case.config, case.total_len, platform="cpu")
    axes = jax.tree.leaves(row_axes(policy.init), is_leaf=lambda x: isinstance(x, RowAxis))
    five = jax.tree.leaves(jax.eval_shape(lambda: policy.init(5)))
    assert [array.shape[at.axis] for at, array in zip(axes, five, strict=True)] == [5 * at.width for at in axes]
    assert all(at.axis >= 0 for at in axes)


def test_one_row_is_replaced_and_no_other_touched():
    random = np.random.default_rng(0)

    def make(rows):
        return {"tokens": random.standard_normal((2, rows, 3)), "length": random.integers(0, 9, rows)}

    running, rows = (jax.tree.map(jnp.asarray, make(count)) for count in (5, 2))
    changed = put_row(running, rows, row_axes(make), jnp.int32(1), jnp.int32(3))
    for name, axis in (("tokens", 1), ("length", 0)):
        expected = np.array(running[name])
        expected[(slice(None),) * axis + (3,)] = np.asarray(rows[name])[(slice(None),) * axis + (1,)]
        np.testing.assert_array_equal(changed[name], expected)


def test_several_entries_per_row_and_arrays_of_no_row():
    def make(rows):
        return {"heads": jnp.zeros((2, 3 * rows)), "table": jnp.zeros((4,))}

    axes = row_axes(make)
    assert axes == {"heads": RowAxis(1, 3), "table": RowAxis(-1, 0)}
    rows = {"heads": jnp.ones((2, 3)), "table": jnp.ones((4,))}
    changed = put_row(make(2), rows, axes, jnp.int32(0), jnp.int32(1))
    assert changed["heads"].tolist() == [[0, 0, 0, 1, 1, 1]] * 2 and not changed["table"].any()


@pytest.mark.parametrize("make", [lambda rows: jnp.zeros((rows + 1,)), lambda rows: jnp.zeros((rows, rows))])
def test_an_axis_that_is_not_of_rows_is_refused(make):
    with pytest.raises(ValueError, match="no axis counts its rows"):
        row_axes(make)
