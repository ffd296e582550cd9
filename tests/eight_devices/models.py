# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A random model on meshes, and the cache that one device must have to hold what a mesh holds."""

from dataclasses import replace
from functools import cache

import numpy as np

from qevict_jax import CacheConfig, CachePlan
from qevict_jax.engine import Engine, Request
from qevict_jax.mesh import MeshShape
from qevict_jax.models import LanguageModel
from qevict_jax.policies import plan_cache
from tests.random_model import random_model

CONTEXT, NEW = 112, 21


@cache
def model_on(mesh: str, name: str = "wide") -> LanguageModel:
    """A random model; ``""`` is one device."""
    random = random_model(name)
    model = LanguageModel(random.config, random.program, random.params)
    return model.on(MeshShape.parse(mesh)) if mesh else model


@cache
def cache_of_one_device(config: CacheConfig, mesh: str, name: str = "wide") -> CacheConfig:
    """The budget at which one device has room for as many windows or tokens as the devices of a mesh have."""
    model = model_on(mesh, name)
    wanted = Engine(model, config, slots=8, max_context=CONTEXT).plan
    shape = model.config.kv_shape(config.kv_dtype)

    def plan(budget: int) -> CachePlan:
        return plan_cache(shape, with_budget(budget), CONTEXT)

    def with_budget(budget: int) -> CacheConfig:
        return replace(config, budget=None, budget_bytes=budget)

    # more bytes, more room; the shares of the tiers change within the same room
    full = shape.bytes_per_token * CONTEXT
    for budget in range(full // 3, full, 64):
        if plan(budget).capacities == wanted.capacities:
            return with_budget(budget)
    raise AssertionError(wanted.capacities)


def requests(count: int = 8) -> list[Request]:
    """Prompts and answers of all lengths."""
    random = np.random.default_rng(0)
    lengths = (60, 33, 9, 1, 50, 64, 40, 20)[:count]
    return [
        Request(random.integers(0, 61, length).tolist(), NEW - 2 * (row % 3), row=row)
        for row, length in enumerate(lengths)
    ]


def finished(model: LanguageModel, config: CacheConfig) -> Engine:
    """An engine in which all requests have decoded to their ends."""
    engine = Engine(model, config, slots=8, max_context=CONTEXT, max_new_tokens=NEW, log_probs=True)
    engine.insert(engine.prefill(requests(), size=64), range(8))
    engine.decode_all()
    return engine
