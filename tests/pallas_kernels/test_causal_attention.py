# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Causal attention of a prompt, XLA and splash attention interpreted, against plain softmax in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.causal_attention import base, splash
from pallas_kernels.causal_attention.api import causal_attention
from tests.float64_model import softmax_attention


def qkv(batch, size, heads, kv_heads, head_dim, seed=0):
    random = np.random.default_rng(seed)
    return [np.float32(random.normal(size=(batch, size, h, head_dim))) for h in (heads, kv_heads, kv_heads)]


def assert_attends(q, k, v, out, lse):
    """Output and log-sum-exp of every row, against float64."""
    size, heads, head_dim = q.shape[1:]
    groups = heads // k.shape[2]
    for row in range(len(q)):
        wanted, weights = softmax_attention(q[row], k[row], v[row], np.tril(np.ones((size, size), bool)))
        np.testing.assert_allclose(out[row], wanted, rtol=0, atol=1e-5)
        logits = np.einsum("thd,thd->th", np.float64(q[row]), np.repeat(np.float64(k[row]), groups, axis=1))
        own = weights[:, np.arange(size), np.arange(size)].T
        np.testing.assert_allclose(lse[row], logits / head_dim**0.5 - np.log(own), rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 127, 128, 130])
def test_causal_attention_of_sizes_around_blocks(size, monkeypatch):
    """Blocks of at most 16 queries, spans of several blocks: no size falls between them."""
    monkeypatch.setattr(base, "_BLOCK_BYTES", 4 * 2 * 4 * size * 16)
    q, k, v = qkv(2, size, 4, 2, 8)
    out, lse = jax.jit(causal_attention)(q, k, v)
    assert out.shape == q.shape and lse.shape == q.shape[:3]
    assert_attends(q, k, v, out, lse)


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


@pytest.mark.parametrize(
    ("size", "kv_heads", "groups", "head_dim"), [(1, 2, 1, 64), (130, 1, 3, 80), (300, 2, 7, 16), (2050, 1, 1, 8)]
)
def test_splash_attention(size, kv_heads, groups, head_dim):
    """Less than a block, several blocks, a partial last one, and long blocks; heads in order."""
    q, k, v = qkv(2 if size < 1000 else 1, size, kv_heads * groups, kv_heads, head_dim)
    out, lse = jax.jit(partial(causal_attention, implementation="interpret"))(q, k, v)
    assert out.dtype == lse.dtype == jnp.float32
    assert_attends(q, k, v, out, lse)


def test_splash_attention_in_bfloat16():
    """Queries are rounded once more after scaling: two roundings of the weights and one of the output."""
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in qkv(1, 200, 4, 2, 32))
    out, lse = jax.jit(partial(causal_attention, implementation="interpret"))(q, k, v)
    wanted, wanted_lse = jax.jit(base.causal_attention)(*(x.astype(jnp.float32) for x in (q, k, v)))
    assert out.dtype == jnp.bfloat16 and lse.dtype == jnp.float32
    np.testing.assert_allclose(out.astype(jnp.float32), wanted, rtol=0, atol=2**-6)
    np.testing.assert_allclose(lse, wanted_lse, rtol=0, atol=2**-6)


def test_splash_attention_sees_no_padding_behind():
    q, k, v = qkv(1, 150, 2, 1, 16)
    whole, whole_lse = jax.jit(partial(causal_attention, implementation="interpret"))(q, k, v)
    q[:, 100:], k[:, 100:], v[:, 100:] = np.nan, np.nan, 9e9
    out, lse = jax.jit(partial(causal_attention, implementation="interpret"))(q, k, v)
    np.testing.assert_array_equal(out[:, :100], whole[:, :100])
    np.testing.assert_array_equal(lse[:, :100], whole_lse[:, :100])


def test_splash_attention_takes_no_float16():
    """By name that is an error; left to itself the program takes XLA."""
    q, k, v = (jnp.asarray(x, jnp.float16) for x in qkv(1, 8, 2, 1, 16))
    with pytest.raises(ValueError, match="splash attention takes no float16"):
        causal_attention(q, k, v, implementation="tpu")
    assert splash.unsupported(q.dtype) and causal_attention(q, k, v)[0].dtype == jnp.float16
