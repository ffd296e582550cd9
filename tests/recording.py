# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A policy at work: prefill, steps and events of one case of the table, every cache kept, for the laws to look at."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

from qevict_jax.models import steps
from qevict_jax.policies import Policy, make_policy
from tests.policy_table import CASES, PolicyCase
from tests.quick_compile import QUICK
from tests.random_model import RandomModel, random_model

BATCH = 4
INACTIVE = 3  # a row without a prompt that never gets a token
STOPS = 1  # a row that becomes inactive in the middle of the second block


@dataclass(frozen=True)
class Driver:
    """The three programs of a policy, each of which may be traced once."""

    case: PolicyCase
    model: RandomModel
    policy: Policy
    prefill: Callable
    step: Callable
    route: Callable


@dataclass(frozen=True)
class Moment:
    """A cache, as NumPy arrays, and what led to it.

    Attributes:
        kind: "prefill", "step" or "route".
        cache: after it.
        logits: ``[B, V]``, None for an event.
        tokens: ``[B, T]`` that were fed, None for an event.
        count: ``[B]`` how many of them count.
    """

    kind: str
    cache: Any
    logits: np.ndarray | None = None
    tokens: np.ndarray | None = None
    count: np.ndarray | None = None


def make_driver(case: PolicyCase, compiled: bool = True, options: dict[str, Any] | None = None) -> Driver:
    """Programs of a case, compiled with options, or the plain functions."""
    model = random_model(case.model)
    policy = make_policy(model.config.kv_shape(case.config.kv_dtype), case.config, case.total_len, platform="cpu")

    def prefill(tokens, length):
        return steps.prefill(model.program, model.params, policy, tokens, length)

    def step(cache, tokens, count):
        return steps.step(model.program, model.params, policy, cache, tokens, count)

    def route(cache):
        return steps.route(model.program, model.params, policy, cache)

    functions = [prefill, step, route]
    if compiled:
        functions = [jax.jit(_traced_once(f), compiler_options=options) for f in functions]
    return Driver(case, model, policy, *functions)


def _traced_once(function: Callable) -> Callable:
    """Fails at a second trace. `chex.assert_max_traces` counts by name, so it cannot tell the policies apart."""
    traces = 0

    def traced(*args):
        nonlocal traces
        traces += 1
        assert traces == 1, f"{function.__name__} is traced twice"
        return function(*args)

    return traced


@cache
def driver(name: str) -> Driver:
    """The compiled driver of a row of the table, shared by all tests."""
    return make_driver(CASES[name], options=QUICK)


def lengths(case: PolicyCase) -> np.ndarray:
    """Prompt lengths: nearly all of the bucket, half of it, fewer than the sinks, none."""
    return np.array([case.prompt - 4, case.prompt // 2 + 3, 2, 0], np.int32)


def counts(case: PolicyCase, steps_per_event: int) -> np.ndarray:
    """``[steps, B]``: which rows get a token at each step."""
    active = np.ones((case.events * steps_per_event, BATCH), np.int32)
    active[:, INACTIVE] = 0
    active[steps_per_event + steps_per_event // 2 :, STOPS] = 0
    return active


def play(
    driver: Driver,
    tokens: np.ndarray,
    length: np.ndarray,
    count: np.ndarray,
    change: Callable[[Any], Any] = lambda cache: cache,
) -> list[Moment]:
    """Runs a driver.

    Args:
        driver: the programs.
        tokens: ``[B, prompt + steps]``.
        length: ``[B]`` prompt lengths.
        count: ``[steps, B]``, 1 where a row is fed.
        change: applied to the cache before every step and event.
    """
    size = driver.case.prompt
    logits, cache = driver.prefill(tokens[:, :size], length)
    moments = [Moment("prefill", jax.device_get(cache), np.asarray(logits), tokens[:, :size], length)]
    for i, row_count in enumerate(count):
        fed = tokens[:, size + i : size + i + 1]
        logits, cache = driver.step(change(cache), fed, row_count)
        moments.append(Moment("step", jax.device_get(cache), np.asarray(logits), fed, row_count))
        if (i + 1) % driver.policy.event_steps == 0:
            cache = driver.route(change(cache))
            moments.append(Moment("route", jax.device_get(cache)))
    return moments


def some_tokens(case: PolicyCase, steps_per_event: int, seed: int = 0) -> np.ndarray:
    """Random tokens ``[B, prompt + steps]``."""
    vocab = random_model(case.model).config.vocab
    size = case.prompt + case.events * steps_per_event
    return np.random.default_rng(seed).integers(0, vocab, (BATCH, size), dtype=np.int32)


@cache
def recording(name: str) -> list[Moment]:
    """The standard run of a row of the table, made once."""
    made = driver(name)
    per_event = made.policy.event_steps
    return play(made, some_tokens(made.case, per_event), lengths(made.case), counts(made.case, per_event))
