# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes that fit."""

import pytest

from qevict_jax.evaluation.ruler.draft import fitting_size, largest_size
from qevict_jax.types import QEvictError


@pytest.mark.parametrize("limit, size", [(10, 0), (12, 0), (13, 1), (100, 30), (1000, 330)])
def test_the_largest_size(limit, size):
    assert largest_size(lambda size: 10 + 3 * size, limit) == size


@pytest.mark.parametrize("most, size", [(0, 0), (1, 1), (29, 29), (30, 30), (31, 30), (500, 30)])
def test_no_more_than_there_is(most, size):
    def tokens(size):
        assert size <= most
        return 10 + 3 * size

    assert largest_size(tokens, 100, most) == size


def test_shrinking_until_it_fits():
    assert fitting_size(lambda size: 10 + 3 * size, 40, 100) == 30
    assert fitting_size(lambda size: 10 + size, 4000, 3000) in range(2970, 2991)


@pytest.mark.parametrize("find", [lambda tokens: largest_size(tokens, 9), lambda tokens: fitting_size(tokens, 5, 9)])
def test_nothing_fits(find):
    with pytest.raises(QEvictError, match="10 tokens of the 9"):
        find(lambda size: 10 + size)
