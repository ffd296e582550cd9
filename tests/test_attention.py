# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Causal attention by blocks and dense decode attention against plain softmax in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.float_bits import to_bits
from qevict_jax import attention
from qevict_jax.attention import causal_attention, dense_attention
from tests.float64_model import softmax_attention


def qkv(batch, size, heads, kv_heads, head_dim, seed=0):
    random = np.random.default_rng(seed)
    return [np.float32(random.normal(size=(batch, size, h, head_dim))) for h in (heads, kv_heads, kv_heads)]


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 127, 128, 130])
def test_causal_attention_of_sizes_around_blocks(size, monkeypatch):
    """Blocks of at most 16 queries, spans of several blocks: no size falls between them."""
    monkeypatch.setattr(attention, "_BLOCK_BYTES", 4 * 2 * 4 * size * 16)
    q, k, v = qkv(2, size, 4, 2, 8)
    out, lse = jax.jit(causal_attention)(q, k, v)
    assert out.shape == q.shape and lse.shape == q.shape[:3]
    for row in range(2):
        wanted, weights = softmax_attention(q[row], k[row], v[row], np.tril(np.ones((size, size), bool)))
        np.testing.assert_allclose(out[row], wanted, rtol=0, atol=1e-5)
        logits = np.einsum("thd,thd->th", np.float64(q[row]), np.repeat(np.float64(k[row]), 2, axis=1)) / 8**0.5
        own = weights[:, np.arange(size), np.arange(size)].T
        np.testing.assert_allclose(lse[row], logits - np.log(own), rtol=0, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 3, 4, 7, 8])
def test_query_heads_share_kv_heads_in_order(groups):
    q, k, v = qkv(1, 12, 2 * groups, 2, 16)
    out, _ = jax.jit(causal_attention)(q, k, v)
    wanted, _ = softmax_attention(q[0], k[0], v[0], np.tril(np.ones((12, 12), bool)))
    np.testing.assert_allclose(out[0], wanted, rtol=0, atol=1e-5)


def test_padding_behind_is_never_seen():
    q, k, v = qkv(1, 40, 4, 2, 8)
    whole, _ = jax.jit(causal_attention)(q, k, v)
    for x in (q, k, v):
        x[:, 23:] = np.nan
    out, _ = jax.jit(causal_attention)(q, k, np.where(np.isnan(v), 9e9, v))
    np.testing.assert_allclose(out[:, :23], whole[:, :23], rtol=0, atol=1e-5)


def test_huge_logits_neither_overflow_nor_blur():
    """Qwen2.5 keys of magnitude 900: float32 softmax with the maximum taken out."""
    q, k, v = qkv(1, 20, 2, 1, 16)
    k += 900.0
    out, lse = jax.jit(causal_attention)(q, k, v)
    assert np.isfinite(out).all() and np.isfinite(lse).all()
    wanted, _ = softmax_attention(q[0], k[0], v[0], np.tril(np.ones((20, 20), bool)))
    np.testing.assert_allclose(out[0], wanted, rtol=0, atol=5e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("count", [1, 5])
def test_dense_attention(dtype, count):
    """Every query sees positions up to its own in its own row, and nothing of a later token."""
    batch, size, heads, kv_heads, head_dim = 2, 30, 6, 2, 16
    q = qkv(batch, count, heads, kv_heads, head_dim)[0]
    _, k, v = qkv(batch, size, heads, kv_heads, head_dim, seed=1)
    rows = np.stack([k, v], axis=3).reshape(batch, size, -1)
    stack = to_bits(jnp.asarray(np.stack([rows * np.nan, rows])), dtype)
    positions = np.array([[20], [7]], np.int32) + np.arange(count, dtype=np.int32)
    function = jax.jit(partial(dense_attention, kv_dtype=dtype))
    out = function(q, stack, jnp.int32(1), positions)
    for row in range(batch):
        keys, values = (np.float64(np.float32(x[row].astype(jnp.dtype(dtype)))) for x in (k, v))
        seen = np.arange(size) <= positions[row][:, None]
        wanted, _ = softmax_attention(q[row], keys, values, seen)
        np.testing.assert_allclose(out[row], wanted, rtol=0, atol=1e-5)
