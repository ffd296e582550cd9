# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Start mass of prompt windows against an explicit S x S softmax."""

from functools import partial

import jax
import numpy as np
import pytest

from pallas_kernels.prefill_window_mass import base
from qevict_jax.attention import causal_attention, start_mass
from tests.float64_model import softmax_attention

S, H, K, D = 45, 6, 2, 16
LENGTHS = np.array([45, 20, 7, 1, 0], np.int32)


@pytest.fixture(scope="module")
def prompt():
    """q, k, v of prompts padded on the right; padding is large, so that it shows if it counts."""
    random = np.random.default_rng(3)
    q, k, v = (np.float32(random.normal(size=(len(LENGTHS), S, heads, D))) for heads in (H, K, K))
    padding = np.arange(S) >= LENGTHS[:, None]
    return tuple(np.where(padding[..., None, None], 5.0 * x, x).astype(np.float32) for x in (2 * q, k, v))


@pytest.fixture(scope="module")
def attended(prompt):
    q, k, v = prompt
    return q, k, v, *jax.jit(causal_attention)(q, k, v)


@pytest.mark.parametrize("block_bytes", [64 << 20, 4 * 5 * 6 * 45 * 7])
@pytest.mark.parametrize("mode", ["all", "mean", "last:8", "last:100"])
@pytest.mark.parametrize(("window", "sink"), [(8, 5), (4, 0)])
def test_against_an_explicit_softmax(attended, mode, window, sink, block_bytes, monkeypatch):
    """Whole, and in blocks of seven queries."""
    monkeypatch.setattr(base, "_BLOCK_BYTES", block_bytes)
    q, k, v, _, lse = attended
    last = int(mode.split(":")[1]) if mode.startswith("last") else None
    function = partial(start_mass, prefill_scores=mode, last_queries=last, window=window, sink=sink)
    ours = np.asarray(jax.jit(function)(q, k, lse, LENGTHS))
    assert ours.shape == (len(LENGTHS), -(-(S - sink) // window))
    for row, n in enumerate(LENGTHS):
        wanted = np.zeros(ours.shape[1])
        if n:
            causal = np.tril(np.ones((n, n), bool))
            _, weights = softmax_attention(q[row, :n], k[row, :n], v[row, :n], causal)
            by_query = weights.mean(axis=0)
            if last is not None:
                by_query = by_query[-last:]
            by_token = by_query.sum(axis=0)
            if mode == "mean":
                by_token = by_token / np.arange(n, 0, -1)
            for position in range(sink, n):
                wanted[(position - sink) // window] += by_token[position]
        np.testing.assert_allclose(ours[row], wanted, rtol=1e-4, atol=1e-5)


def test_all_queries_together_give_their_number(attended):
    """Without sinks every bit of mass is in some window."""
    q, k, _, _, lse = attended
    mass = start_mass(
        *(jax.numpy.asarray(x) for x in (q, k, lse, LENGTHS)),
        prefill_scores="all",
        last_queries=None,
        window=4,
        sink=0,
    )
    np.testing.assert_allclose(mass.sum(axis=1), LENGTHS, rtol=1e-5)


def test_a_prompt_shorter_than_the_sinks(attended):
    """There is one window, and it is empty."""
    q, k, _, _, lse = attended
    mass = jax.jit(partial(start_mass, prefill_scores="all", last_queries=None, window=8, sink=50))(q, k, lse, LENGTHS)
    np.testing.assert_array_equal(mass, np.zeros((len(LENGTHS), 1)))
