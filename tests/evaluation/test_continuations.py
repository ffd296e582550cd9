# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of continuations, against a plain causal pass and against teacher forcing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.evaluation.continuations import score_continuations
from qevict_jax.evaluation.teacher_forcing import log_probs, record_prompt
from qevict_jax.models import LanguageModel
from qevict_jax.policies import make_policy
from qevict_jax.types import QEvictError
from tests.random_model import random_model


@pytest.fixture(scope="module")
def model():
    return LanguageModel(*random_model("plain"))


def tokens(count, seed=0):
    return np.random.default_rng(seed).integers(0, 64, count).tolist()


def dense(model, context, continuation):
    """From a plain pass over everything."""
    logits = model.logits(np.asarray([[*context, *continuation]]))[0, len(context) - 1 : -1]
    ours = np.asarray(jax.nn.log_softmax(logits))
    chosen = ours[np.arange(len(continuation)), continuation]
    return chosen.sum(), bool((ours.argmax(axis=-1) == continuation).all())


def test_a_full_cache_gives_what_a_plain_pass_gives(model):
    pairs = [(tokens(40, 1), tokens(21, 2)), (tokens(1, 3), tokens(30, 4)), (tokens(9, 5), tokens(1, 6))]
    # a row that greedy decoding produces
    best = int(np.asarray(model.logits(np.asarray([pairs[2][0]]))[0, -1]).argmax())
    pairs.append((pairs[2][0], [best]))
    got = score_continuations(model, pairs, lambda total: CacheConfig.full("float32"), batch_size=5)
    for pair, (log_prob, greedy) in zip(pairs, got, strict=True):
        expected, expected_greedy = dense(model, *pair)
        assert log_prob == pytest.approx(expected, abs=2e-3) and greedy == expected_greedy
    assert [greedy for _, greedy in got] == [False, False, False, True]


def test_a_compressed_cache_is_behind_every_token(model):
    config = CacheConfig(budget=0.5, kv_dtype="float32", quant_fraction=0.0)  # two tiers compile fastest
    context, continuation = tokens(120, 7), tokens(20, 8)
    totals = []
    ((got, _),) = score_continuations(model, [(context, continuation)], lambda n: totals.append(n) or config)
    assert totals == [128 + 64]
    policy = make_policy(model.config.kv_shape(), config, totals[0])
    record = record_prompt(model.program, model.params, jnp.asarray([context[:-1]]), "float32")
    fed = jnp.asarray([[context[-1], *continuation[:-1]]])
    after = np.asarray(log_probs(model.program, model.params, policy, record, fed))[:, 0]
    assert got == pytest.approx(after[np.arange(20), continuation].sum(), abs=2e-3)
    assert abs(got - dense(model, context, continuation)[0]) > 0.01


def test_a_budget_that_is_too_small_says_so(model):
    with pytest.raises(QEvictError, match="the smallest budget that works"):
        score_continuations(model, [([1, 2], [3])], lambda total: CacheConfig(budget=0.05))
