# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Budgets of token-level eviction are kept, used, or refused with the smallest that works."""

import re

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qevict_jax.cache import nbytes
from qevict_jax.config import CacheConfig
from qevict_jax.policies import make_policy, plan_cache
from qevict_jax.types import BudgetError, KVShape

POLICIES = ["streaming_llm", "h2o", "snapkv", "adakv", "criticalkv", "defensivekv", "layer_defensivekv"]
SHAPES = st.builds(
    KVShape, st.integers(1, 32), st.sampled_from([1, 3, 8]), st.sampled_from([64, 80, 128]), st.just("bfloat16")
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.sampled_from(POLICIES), SHAPES, st.integers(40, 40_000), st.floats(0.002, 1.5), st.sampled_from([1, 8]))
def test_budgets(policy, shape, total_len, budget, multiple):
    def plan(**given):
        return plan_cache(shape, CacheConfig(policy=policy, **given), total_len, slot_multiple=multiple)

    try:
        made = plan(budget=budget)
    except BudgetError as error:
        ratio, size = re.search(r"works is ([0-9.]+) \(budget_bytes=(\d+)\)", str(error)).groups()
        assert plan(budget_bytes=int(size)).kv_bytes <= int(size)
        assert plan(budget=float(ratio)).kv_bytes >= int(size) and float(ratio) > budget
        with pytest.raises(BudgetError):
            plan(budget_bytes=int(size) - 1)
        return
    assert made.ratio <= budget
    assert made.kv_bytes == sum(size for _, size in made.parts)
    larger = plan(budget=1.5 * budget)
    assert larger.kv_bytes >= made.kv_bytes
    if larger.kv_bytes > made.kv_bytes:  # or there is nothing left to keep
        row = shape.layers * shape.kv_heads * multiple * (4 * shape.head_dim + 20)
        assert budget * made.full_kv_bytes - made.kv_bytes < 2 * row + shape.bytes_per_token * multiple


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_the_plan_is_what_the_arrays_take(policy, platform):
    config = CacheConfig(policy=policy, budget=0.3, kv_dtype="float16")
    made = make_policy(KVShape(2, 3, 64, "float32"), config, 600, platform=platform)
    cache = jax.eval_shape(lambda: made.init(5))
    assert nbytes(cache) == 5 * made.plan.kv_bytes
    assert all(size > 0 for axes in jax.tree.leaves(cache) for size in axes.shape)


def test_a_heavy_hitter_cache_is_half_recent():
    plan = plan_cache(KVShape(4, 2, 128, "bfloat16"), CacheConfig(policy="h2o", budget=0.2), 10_000)
    capacities = dict(plan.capacities)
    assert capacities["slots of their ring"] == pytest.approx(capacities["tokens per head"], rel=0.03)
