# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The comparison feeds prompts and tokens in its own order; caches and numbers must be those of decoding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.evaluation.prompt_record import admit_record
from qevict_jax.evaluation.teacher_forcing import divergence, log_probs, record_prompt
from qevict_jax.models import steps
from qevict_jax.policies import make_policy
from tests.policy_table import CASES
from tests.random_model import random_model

NAMES = ["full", "tuned", "paper_bias"]
PROMPT, STEPS = 64, 22  # the last chunk is a part of one for every window


@pytest.fixture(params=NAMES, scope="module")
def case(request):
    row = CASES[request.param]
    model = random_model(row.model)
    policy = make_policy(model.config.kv_shape(), row.config, PROMPT + STEPS, platform="cpu")
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, model.config.vocab, (2, PROMPT + STEPS)), jnp.int32)
    return model, policy, tokens, record_prompt(model.program, model.params, tokens[:, :PROMPT], "float32")


@partial(jax.jit, static_argnames=("program", "policy"))
def _prefill(program, params, policy, tokens):
    return steps.prefill(program, params, policy, tokens, jnp.full((2,), PROMPT, jnp.int32))


@partial(jax.jit, static_argnames=("program", "policy"))
def _step(program, params, policy, cache, token):
    return steps.step(program, params, policy, cache, token, jnp.ones((2,), jnp.int32))


_route = partial(jax.jit, static_argnames=("program", "policy"))(steps.route)


def test_admitting_a_record_is_prefill(case):
    model, policy, tokens, record = case
    _, expected = _prefill(model.program, model.params, policy, tokens[:, :PROMPT])
    transform = model.program.transform(model.program.bind(model.params))
    got = jax.jit(lambda record: admit_record(policy, record, transform))(record)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), atol=1e-5)


def test_chunks_are_single_steps_and_events(case):
    model, policy, tokens, record = case
    _, cache = _prefill(model.program, model.params, policy, tokens[:, :PROMPT])
    expected = []
    for i in range(STEPS):
        logits, cache = _step(model.program, model.params, policy, cache, tokens[:, PROMPT + i, None])
        expected.append(jax.nn.log_softmax(logits))
        if (i + 1) % policy.event_steps == 0:
            cache = _route(model.program, model.params, policy, cache)
    got = log_probs(model.program, model.params, policy, record, tokens[:, PROMPT:])
    np.testing.assert_allclose(got, np.stack(expected), atol=2e-4)


@pytest.mark.parametrize("case", ["tuned"], indirect=True)
def test_divergence_is_what_the_log_probs_say(case):
    model, policy, tokens, record = case
    full = make_policy(model.config.kv_shape(), CASES["full"].config, PROMPT + STEPS)
    after = tokens[:, PROMPT:]
    reference = log_probs(model.program, model.params, full, record, after)
    targets = jnp.roll(after, -1, axis=1)
    got, _ = divergence(model.program, model.params, policy, record, after, targets, reference)
    theirs = np.asarray(reference, np.float64)
    ours = np.asarray(log_probs(model.program, model.params, policy, record, after), np.float64)
    np.testing.assert_allclose(got["kl"], (np.exp(theirs) * (theirs - ours)).sum(-1), atol=1e-5)
    np.testing.assert_array_equal(got["top1"], theirs.argmax(-1) == ours.argmax(-1))
    index = np.asarray(targets).T[..., None]
    np.testing.assert_allclose(got["nll"], -np.take_along_axis(ours, index, -1)[..., 0], atol=1e-5)
    np.testing.assert_allclose(got["reference_nll"], -np.take_along_axis(theirs, index, -1)[..., 0], atol=1e-5)
