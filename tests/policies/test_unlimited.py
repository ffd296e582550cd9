# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""With room for everything a cache is no approximation: prefill, steps and chunks all give dense causal attention."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.models import steps
from tests.policy_table import PolicyCase
from tests.recording import BATCH, make_driver, some_tokens

STEPS = 16
ALL = {"budget": 4.0, "kv_dtype": "float32", "quant_fraction": 0.0, "prefill_scores": "all", "prefill_pool": 1}


def _unlimited(policy: str, options: str) -> CacheConfig:
    return CacheConfig(policy=policy, policy_options=options, budget=4.0, kv_dtype="float32")


CASES = {
    "full": PolicyCase(CacheConfig.full("float32"), prompt=40),
    "window_4": PolicyCase(CacheConfig.tuned(**ALL, window=4, sink=3, recent=5), model="scaled", prompt=40),
    "streaming_llm": PolicyCase(_unlimited("streaming_llm", "sink=3"), prompt=40),
    "snapkv": PolicyCase(_unlimited("snapkv", "window=6"), model="bias", prompt=40),
    "layer_defensivekv": PolicyCase(_unlimited("layer_defensivekv", "window=6,layer_share=1"), prompt=40),
    "window_8_bias": PolicyCase(CacheConfig.paper(**ALL, recent=3), model="bias", prompt=40),
}


@pytest.fixture(scope="module", params=CASES)
def made(request):
    return make_driver(CASES[request.param])


@pytest.fixture(scope="module")
def dense(made):
    """Tokens, and the logits after each of them from a pass without a cache."""
    tokens = some_tokens(made.case, made.policy.event_steps)[:, : 40 + STEPS]
    return tokens, np.asarray(steps.all_logits(made.model.program, made.model.params, jnp.asarray(tokens)))


def decode(made, cache, tokens, first):
    """Logits ``[steps, B, V]`` of feeding every row token by token from its own position on, and the cache."""
    logits = []
    for i in range(STEPS):
        fed = np.take_along_axis(tokens, first[:, None] + i, axis=1)
        out, cache = made.step(cache, fed, np.ones(BATCH, np.int32))
        logits.append(np.asarray(out))
        if (i + 1) % made.policy.event_steps == 0:
            cache = made.route(cache)
    return np.stack(logits), cache


def test_prefill_and_decode(made, dense):
    tokens, expected = dense
    length = np.array([40, 17, 1, 3], np.int32)
    logits, cache = made.prefill(tokens[:, :40], length)
    rows = np.arange(BATCH)
    np.testing.assert_allclose(logits, expected[rows, length - 1], rtol=0, atol=2e-4)
    out, _ = decode(made, cache, tokens, length)
    for i in range(STEPS):
        np.testing.assert_allclose(out[i], expected[rows, length + i], rtol=0, atol=2e-4)


def test_a_prompt_of_no_tokens(made, dense):
    """Rows without a prompt start from their first decoded token."""
    tokens, expected = dense
    _, cache = made.prefill(tokens[:, :40], np.array([0, 40, 0, 2], np.int32))
    first = np.array([0, 40, 0, 2])
    out, _ = decode(made, cache, tokens, first)
    for i in range(STEPS):
        np.testing.assert_allclose(out[i], expected[np.arange(BATCH), first + i], rtol=0, atol=2e-4)


def test_chunks_and_prefill_leave_the_same_cache(made, dense):
    """Read in pieces of W or all at once: the same windows, tokens and scores, as every query counts in both."""
    tokens, expected = dense
    size = made.policy.event_steps
    model = made.model
    step = jax.jit(lambda cache, fed, count: steps.step(model.program, model.params, made.policy, cache, fed, count))
    cache = made.policy.init(BATCH)
    length = np.array([40, 26, 40, 40], np.int32)
    for start in range(0, 40, size):
        count = np.clip(length - start, 0, size).astype(np.int32)
        logits, cache = step(cache, tokens[:, start : start + size], count)
        cache = made.route(cache)
        fed = count > 0
        np.testing.assert_allclose(np.asarray(logits)[fed], expected[fed, start + count[fed] - 1], rtol=0, atol=2e-4)
    _, whole = made.prefill(tokens[:, :40], length)
    if made.case.config.policy == "full":
        for row, n in enumerate(length):
            ours, theirs = (np.asarray(x.tokens[:, row, :n]) for x in (cache, whole))
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
        return
    chex.assert_trees_all_equal(cache.length, whole.length)
    if made.case.config.policy != "qevict":
        return  # what is scored before a window is full differs
    chex.assert_trees_all_equal(cache.aged, whole.aged)
    layout = cache.layout
    for row, n in enumerate(length):
        aged = int(whole.aged[row])
        for layer in range(2):
            found = []
            for made_by in (cache, whole):
                slot = {int(w): i for i, w in enumerate(made_by.full_window[layer, row]) if w >= 0}
                assert sorted(slot) == list(range(aged))
                order = np.array([slot[w] for w in range(aged)], int)
                found.append((made_by.full[layer, row][order], made_by.score.full[layer, row][order]))
            chex.assert_trees_all_close(*found, rtol=1e-4, atol=1e-4)
        in_ring = np.arange(layout.sink + aged * layout.window, n)
        ring = (in_ring - layout.sink) % layout.ring
        sinks = layout.ring + np.arange(min(n, layout.sink))
        held = np.concatenate([ring, sinks])
        np.testing.assert_allclose(cache.local[:, row][:, held], whole.local[:, row][:, held], rtol=0, atol=1e-4)
        np.testing.assert_allclose(cache.score.ring[:, row], whole.score.ring[:, row], rtol=1e-4, atol=1e-4)
