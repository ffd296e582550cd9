# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Dense decode attention against plain softmax in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.float_bits import to_bits
from qevict_jax.attention import dense_at_once, dense_attention, dense_head_by_head
from tests.float64_model import softmax_attention


def qkv(batch, size, heads, kv_heads, head_dim, seed=0):
    random = np.random.default_rng(seed)
    return [np.float32(random.normal(size=(batch, size, h, head_dim))) for h in (heads, kv_heads, kv_heads)]


@pytest.mark.parametrize("form", [dense_at_once, dense_head_by_head])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("count", [1, 5])
def test_dense_attention(dtype, count, form):
    """Every query sees positions up to its own in its own row, and nothing of a later token."""
    batch, size, heads, kv_heads, head_dim = 2, 30, 6, 2, 16
    q = qkv(batch, count, heads, kv_heads, head_dim)[0]
    _, k, v = qkv(batch, size, heads, kv_heads, head_dim, seed=1)
    rows = np.stack([k, v], axis=3).reshape(batch, size, -1)
    stack = to_bits(jnp.asarray(np.stack([rows * np.nan, rows])), dtype)
    positions = np.array([[20], [7]], np.int32) + np.arange(count, dtype=np.int32)
    out = jax.jit(partial(form, kv_dtype=dtype))(q, stack, jnp.int32(1), positions)
    for row in range(batch):
        keys, values = (np.float64(np.float32(x[row].astype(jnp.dtype(dtype)))) for x in (k, v))
        seen = np.arange(size) <= positions[row][:, None]
        wanted, _ = softmax_attention(q[row], keys, values, seen)
        np.testing.assert_allclose(out[row], wanted, rtol=0, atol=1e-5)


def test_a_cpu_takes_its_form():
    q, k, _ = (jnp.asarray(x) for x in qkv(2, 9, 4, 2, 16))
    arguments = q[:, :1], jnp.tile(k.reshape(1, 2, 9, -1), 2), jnp.int32(0), jnp.full((2, 1), 5)
    ours, theirs = (jax.jit(partial(f, kv_dtype="float32"))(*arguments) for f in (dense_attention, dense_head_by_head))
    np.testing.assert_array_equal(ours, theirs)
