# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Products with tokens in full precision against those of whole arrays in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import head_by_head
from pallas_kernels.float_bits import from_bits, to_bits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products(dtype):
    """Tokens may lie in windows; a value that is not a number is no matter where no token is seen."""
    random = np.random.default_rng(3)
    batch, kv_heads, count, windows, width, head_dim = 2, 3, 4, 5, 8, 16
    tokens = random.normal(size=(2, batch, windows, width, kv_heads, 2, head_dim)).astype(np.float32)
    seen = random.random((batch, windows * width)) < 0.5
    tokens[0] = np.nan
    tokens[1, ..., 1, :][~seen.reshape(batch, windows, width)] = np.nan
    stack = to_bits(jnp.asarray(tokens.reshape(2, batch, windows, width, -1)), dtype)
    exact = np.float64(from_bits(stack, dtype)).reshape(2, batch, windows * width, kv_heads, 2, head_dim)[1]
    queries = np.float32(random.normal(size=(batch, kv_heads, count, head_dim)))
    weights = np.float32(random.random((batch, kv_heads, count, windows * width)) * seen[:, None, None])

    scores = jax.jit(partial(head_by_head.scores, kv_dtype=dtype))(queries, stack, jnp.int32(1))
    np.testing.assert_allclose(scores, np.einsum("bknd,bskd->bkns", queries, exact[..., 0, :]), rtol=0, atol=2e-5)
    mixed = jax.jit(partial(head_by_head.mix, kv_dtype=dtype))(weights, seen, stack, jnp.int32(1))
    values = np.where(seen[..., None, None], exact[..., 1, :], 0.0)
    np.testing.assert_allclose(mixed, np.einsum("bkns,bskd->bknd", weights, values), rtol=0, atol=2e-5)
