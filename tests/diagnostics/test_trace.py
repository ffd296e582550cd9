# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of policies: what they report must be what an ordinary run does."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.diagnostics.trace import trace_policy
from qevict_jax.models import steps
from qevict_jax.policies.base import Tier
from qevict_jax.types import QEvictError
from tests.diagnostics.tiny_run import CONFIG, PREFILL, STEPS, model, policy_of, record, run, tokens
from tests.quick_compile import QUICK


def test_placements_and_losses_are_those_of_step_by_step_decoding():
    policy, made, found = policy_of(), model(), run()

    def program(function):
        return jax.jit(partial(function, made.program, made.params, policy), compiler_options=QUICK)

    prefill, step, route = program(steps.prefill), program(steps.step), program(steps.route)
    _, cache = prefill(tokens()[None, :PREFILL], np.array([PREFILL], np.int32))
    np.testing.assert_array_equal(found.placement[0], policy.placement(cache)[:, 0])
    for index in range(3 * policy.event_steps):
        token, following = tokens()[PREFILL + index], tokens()[PREFILL + index + 1]
        logits, cache = step(cache, np.array([[token]], np.int32), np.array([1], np.int32))
        log_probs = np.asarray(jax.nn.log_softmax(logits[0]))
        np.testing.assert_allclose(found.nll[index], -log_probs[following], rtol=1e-3, atol=1e-3)
        if (index + 1) % policy.event_steps == 0:
            cache = route(cache)
            event = (index + 1) // policy.event_steps
            assert found.events[event] == index + 1
            np.testing.assert_array_equal(found.placement[event], policy.placement(cache)[:, 0])


def test_window_masses_and_sinks_share_one_token_of_attention_each_step():
    found = run()
    total = found.window_mass.sum(axis=-1)
    assert (total > 0.1).all() and (total < 4 + 1e-3).all()
    # a window that is gone receives nothing
    first = CONFIG.sink + CONFIG.window * np.arange(found.window_mass.shape[-1])
    gone = found.placement[:-1, :, 0][:, :, first] == Tier.EVICTED
    assert gone.any() and not found.window_mass[gone].any()
    held = found.placement[:-1, :, 0][:, :, first] == Tier.QUANTIZED
    assert held.any() and (found.window_mass[held] > 0).all()


def test_without_sinks_all_attention_goes_to_windows():
    config = replace(CONFIG, sink=0, budget=0.4)
    found = run(config)
    length = PREFILL + STEPS
    assert length % config.window == 0
    np.testing.assert_allclose(found.window_mass.sum(axis=-1), config.window, rtol=1e-4)


def test_any_policy_of_the_engine_has_a_trace():
    found = run(CacheConfig.full("float32"))
    assert found.window_mass is None and found.interval == 8
    for event, steps_before in zip(found.placement, found.events, strict=True):
        assert (event[..., : PREFILL + steps_before] == Tier.FULL).all()
        assert (event[..., PREFILL + steps_before :] == Tier.UNSEEN).all()


def test_steps_must_fit_the_events():
    with pytest.raises(QEvictError, match="steps=30 must be a multiple of 4"):
        trace_policy(model(), policy_of(), record(), tokens()[PREFILL:-2])
