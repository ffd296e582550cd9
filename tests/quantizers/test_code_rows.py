# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Codes of single tokens survive being packed, and take the bits that they should."""

from functools import partial

import jax
import numpy as np
import pytest

from qevict_jax.quantizers.code_rows import pack_rows, row_planes, split_rows, unpack_head, unpack_rows
from qevict_jax.types import QEvictError
from tests.quick_compile import QUICK

HEADS = 3


@partial(jax.jit, static_argnames="bits", compiler_options=QUICK)
def round_trip(keys, values, bits):
    """Rows, and codes from them token by token and head by head."""
    head_dim = keys.shape[-1]
    rows = pack_rows(keys, values, bits)
    heads = split_rows(rows, HEADS)
    by_head = [jax.vmap(lambda *x: unpack_head(x, bits, head_dim))(*(x[:, part] for x in heads)) for part in (0, 1)]
    return rows, unpack_rows(rows, bits, HEADS, head_dim), by_head


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("head_dim", [16, 64, 72, 80])
def test_codes_come_back_by_token_and_by_head(bits, head_dim):
    random = np.random.default_rng(0)
    keys, values = random.integers(0, 2**bits, (2, 2, 5, HEADS, head_dim))
    rows, by_token, by_head = round_trip(keys, values, bits)
    for part, expected in enumerate((keys, values)):
        np.testing.assert_array_equal(by_token[part], expected)
        np.testing.assert_array_equal(by_head[part], np.moveaxis(expected, 1, -1).reshape(-1, head_dim, 5))
    assert [(x.shape[-1], x.dtype) for x in rows] == [
        (HEADS * 2 * words, dtype) for words, dtype in row_planes(bits, head_dim)
    ]
    assert sum(x[0, 0].nbytes for x in rows) == HEADS * 2 * head_dim * bits / 8


def test_a_head_dim_that_cannot_be_packed():
    with pytest.raises(QEvictError, match="head_dim=90 must be a multiple of 4"):
        row_planes(2, 90)
