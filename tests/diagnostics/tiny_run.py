# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A tiny model and an article for it, and policies on them, compiled quickly."""

from functools import cache

import jax
import numpy as np

from qevict_jax.config import CacheConfig
from qevict_jax.diagnostics import trace as module
from qevict_jax.diagnostics.trace import PolicyTrace, trace_policy
from qevict_jax.evaluation.teacher_forcing import record_prompt
from qevict_jax.models import LanguageModel
from qevict_jax.policies import make_policy
from tests.quick_compile import QUICK
from tests.random_model import random_model

PREFILL, STEPS = 40, 32
CONFIG = CacheConfig.paper(
    **{"window": 4, "sink": 3, "recent": 5, "kv_dtype": "float32", "budget": 0.34, "quant_fraction": 0.3},
    **{"accounting": "paper", "bits": 4, "prefill_scores": "last:4"},
)


@cache
def model() -> LanguageModel:
    made = random_model("plain")
    return LanguageModel(made.config, made.program, made.params)


@cache
def tokens() -> np.ndarray:
    return np.random.default_rng(3).integers(0, model().config.vocab, PREFILL + STEPS + 1).astype(np.int32)


@cache
def record():
    return record_prompt(model().program, model().params, tokens()[None, :PREFILL], "float32")


def policy_of(config: CacheConfig = CONFIG, variant=None):
    policy = make_policy(model().config.kv_shape(), config, PREFILL + STEPS)
    return policy if variant is None else variant(policy.plan)


def quick_run():
    """The program of `trace`, compiled quickly, to be put in its place."""
    return jax.jit(module._run.__wrapped__, static_argnames=("program", "policy"), compiler_options=QUICK)


@cache
def run(config: CacheConfig = CONFIG, variant=None) -> PolicyTrace:
    """The trace of a policy, with programs compiled quickly."""
    whole, module._run = module._run, quick_run()
    try:
        return trace_policy(model(), policy_of(config, variant), record(), tokens()[PREFILL:])
    finally:
        module._run = whole
