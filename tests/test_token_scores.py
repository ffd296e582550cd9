# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Attention of a prompt by token and head, pooling and value norms, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax import token_scores, value_norms
from qevict_jax.attention import causal_attention
from qevict_jax.token_scores import column_sums, observe_prompt, pool
from qevict_jax.value_norms import output_norms
from tests.eviction_formulas import pooled

BATCH, SIZE, KV_HEADS, GROUPS, HEAD_DIM = 3, 21, 2, 3, 8
LENGTH = np.array([21, 9, 0], np.int32)


@pytest.fixture(scope="module")
def prompt():
    """Queries, keys, log-sum-exp, and the causal probabilities ``[B, K, G, S, S]``; rows beyond a length are zero."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(BATCH, SIZE, KV_HEADS * GROUPS, HEAD_DIM)).astype(np.float32)
    k, v = rng.normal(size=(2, BATCH, SIZE, KV_HEADS, HEAD_DIM)).astype(np.float32)
    _, lse = causal_attention(jnp.asarray(q), jnp.asarray(k), jnp.asarray(v))
    by_head = np.float64(q).reshape(BATCH, SIZE, KV_HEADS, GROUPS, HEAD_DIM)
    logits = np.einsum("bqkgd,bskd->bkgqs", by_head, np.float64(k)) / np.sqrt(HEAD_DIM)
    weights = np.where(np.tri(SIZE, dtype=bool), np.exp(logits), 0.0)
    weights /= weights.sum(axis=-1, keepdims=True)
    weights *= (np.arange(SIZE) < LENGTH[:, None])[:, None, None, :, None]
    return jnp.asarray(q), jnp.asarray(k), lse, weights


@pytest.mark.parametrize("queries", [1, 6, 12, 40])
def test_the_last_queries(prompt, queries):
    """A row with fewer queries gives what it has."""
    q, k, lse, weights = prompt
    made = observe_prompt(
        q, k, lse, jnp.asarray(LENGTH), queries, lambda p: {"sum": p.sum(axis=(1, 2)), "max": p.max(axis=(1, 2))}
    )
    for row, n in enumerate(LENGTH):
        seen = weights[row, :, :, max(0, n - queries) : n]
        np.testing.assert_allclose(made["sum"][row], seen.sum(axis=(1, 2)).T, rtol=0, atol=1e-5)
        highest = seen.max(axis=(1, 2), initial=0.0).T
        np.testing.assert_allclose(made["max"][row], highest, rtol=0, atol=1e-6)


@pytest.mark.parametrize("budget", [1, 64 << 20])
def test_column_sums(prompt, monkeypatch, budget):
    """In blocks of one query and all at once."""
    monkeypatch.setattr(token_scores, "_BLOCK_BYTES", budget)
    q, k, lse, weights = prompt
    made = column_sums(q, k, lse, jnp.asarray(LENGTH))
    np.testing.assert_allclose(made, np.moveaxis(weights.mean(axis=2).sum(axis=2), 1, -1), rtol=0, atol=1e-5)


def test_memory_of_scores_is_bounded():
    """Of a long prompt no array of queries times keys of all heads is made."""
    size, heads, kv_heads = 8192, 32, 8
    shapes = [(1, size, heads, 64), (1, size, kv_heads, 64), (1, size, heads)]
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes] + [jax.ShapeDtypeStruct((1,), jnp.int32)]
    memory = jax.jit(column_sums).lower(*args).compile().memory_analysis()
    # a block of probabilities, its logits, and copies of queries and keys by head
    inputs = 4 * size * 64 * (heads + kv_heads)
    assert memory.temp_size_in_bytes < 2 * inputs + 4 * (64 << 20)


@pytest.mark.parametrize("kind", ["avg", "max"])
@pytest.mark.parametrize("kernel", [1, 4, 5])
def test_pooling(kind, kernel):
    x = np.random.default_rng(1).random((2, 3, 11)).astype(np.float32)
    np.testing.assert_allclose(pool(jnp.asarray(x), kernel, kind), pooled(x, kernel, kind), rtol=1e-6)


@pytest.mark.parametrize("budget", [1, 64 << 20])
def test_value_norms(monkeypatch, budget):
    monkeypatch.setattr(value_norms, "_BLOCK_BYTES", budget)
    rng = np.random.default_rng(2)
    values = rng.normal(size=(2, 5, KV_HEADS, HEAD_DIM)).astype(np.float32)
    kernel = rng.normal(size=(KV_HEADS * GROUPS * HEAD_DIM, 10)).astype(np.float32)
    by_head = np.float64(kernel).reshape(KV_HEADS, GROUPS, HEAD_DIM, 10)
    wanted = np.abs(np.einsum("bnkd,kgde->bnkge", values, by_head)).sum(axis=-1).mean(axis=-1)
    np.testing.assert_allclose(output_norms(jnp.asarray(values), jnp.asarray(kernel)), wanted, rtol=1e-5)
