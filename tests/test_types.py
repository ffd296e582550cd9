# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes of a token, and an error that callers can catch as what it is."""

import pytest

from qevict_jax.types import KVShape, QEvictError


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float16", 2), ("float32", 4)])
def test_bytes_of_a_token(dtype, size):
    shape = KVShape(layers=32, kv_heads=8, head_dim=128, dtype=dtype)
    assert shape.itemsize == size
    assert shape.bytes_per_token == 2 * 32 * 8 * 128 * size


def test_our_error_is_a_value_error():
    assert issubclass(QEvictError, ValueError)
