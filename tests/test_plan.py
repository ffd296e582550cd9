# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Byte accounting: the paper's capacities, the real arrays, and budgets that are kept or rightly refused."""

import re

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qevict_jax.cache import abstract_cache, init_cache, nbytes
from qevict_jax.config import CacheConfig
from qevict_jax.policies import make_policy, plan_cache
from qevict_jax.types import KVShape, QEvictError

LLAMA = KVShape(layers=32, kv_heads=8, head_dim=128, dtype="bfloat16")


@pytest.mark.parametrize(
    ("window", "share", "full_windows", "quant_windows"), [(8, 0.5, 7, 28), (32, 0.5, 1, 11), (8, 0.7, 4, 39)]
)
def test_capacities_of_the_paper(window, share, full_windows, quant_windows):
    """768 tokens at 20%, sinks 5, recent 32, INT2: rows R3 and R4 of the paper, and its default share."""
    config = CacheConfig.paper(budget=0.2, accounting="paper", window=window, quant_fraction=share)
    plan = plan_cache(LLAMA, config, 768)
    assert (plan.full_windows, plan.quant_windows) == (full_windows, quant_windows)


def test_bytes_of_one_window():
    """M_f = 4096 and M_q = 1056 bytes per window and head for 8 tokens of 128 channels, INT2 (eq. 5 and 6)."""
    heads = LLAMA.layers * LLAMA.kv_heads
    config = CacheConfig.paper(budget=0.5, window=8, quant_fraction=0.5)
    plan = plan_cache(LLAMA, config, 768)
    parts = dict(plan.parts)
    assert parts["full windows"] == heads * 4096 * plan.full_windows
    slots = plan.layout.code_slots
    assert parts["codes"] + parts["parameters"] == heads * 1056 * slots
    assert slots == plan.quant_windows + plan.full_windows  # dormant codes are paid for
    assert plan.full_kv_bytes == 768 * 2 * 2 * 8 * 128 * 32


SETTINGS = st.fixed_dictionaries(
    {
        "window": st.sampled_from([4, 8, 16, 32]),
        "bits": st.sampled_from([2, 3, 4]),
        "param_bits": st.sampled_from([8, 16]),
        "quant_fraction": st.sampled_from([0.0, 0.1, 0.5, 0.7, 0.9, 1.0]),
        "residency": st.sampled_from(["exact", "ranked"]),
        "ranking": st.sampled_from(["cumulative", "decay", "p_norm", "key_norm"]),
        "kv_dtype": st.sampled_from(["bfloat16", "float16", "float32"]),
        "sink": st.integers(0, 9),
        "recent": st.integers(1, 70),
    }
)
SHAPES = st.builds(
    KVShape,
    layers=st.integers(1, 4),
    kv_heads=st.integers(1, 8),
    head_dim=st.sampled_from([16, 64, 80, 96, 128, 256]),
    dtype=st.just("bfloat16"),
)
MULTIPLES = st.sampled_from([1, 8])


def smallest(error: QEvictError) -> tuple[float, int]:
    """The ratio and the bytes that an error says would work."""
    ratio, size = re.search(r"smallest budget that works is ([0-9.e-]+) \(budget_bytes=(\d+)\)", str(error)).groups()
    return float(ratio), int(size)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(SHAPES, SETTINGS, st.integers(1, 3000), st.floats(0.001, 1.5), MULTIPLES)
def test_the_budget_is_kept_or_refused(shape, fields, total_len, budget, multiple):
    """And what the refusal calls the smallest budget works, while a byte less does not."""
    config = CacheConfig.tuned(**fields, budget=budget)
    try:
        plan = plan_cache(shape, config, total_len, slot_multiple=multiple)
    except QEvictError as error:
        ratio, size = smallest(error)
        assert plan_cache(shape, CacheConfig.tuned(**fields, budget_bytes=size), total_len, slot_multiple=multiple)
        plan_cache(shape, CacheConfig.tuned(**fields, budget=ratio), total_len, slot_multiple=multiple)
        with pytest.raises(QEvictError):
            plan_cache(shape, CacheConfig.tuned(**fields, budget_bytes=size - 1), total_len, slot_multiple=multiple)
        assert ratio > budget
        return
    assert plan.ratio <= budget
    assert plan.kv_bytes == sum(size for _, size in plan.parts) == nbytes(abstract_cache(plan.layout, 1))
    most = max(0, (total_len - config.sink - config.recent) // config.window)
    assert plan.full_windows + plan.quant_windows <= most
    if most:
        assert plan.full_windows + plan.quant_windows > 0
    if multiple == 8:
        assert plan.layout.code_slots % 8 == plan.layout.local_rows % 8 == plan.layout.scalar_row % 128 == 0
    if config.quant_fraction == 0:
        assert plan.quant_windows == plan.layout.code_slots == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SHAPES, SETTINGS, st.integers(200, 3000), st.floats(0.2, 1.0), MULTIPLES)
def test_a_larger_budget_holds_no_less(shape, fields, total_len, budget, multiple):
    def windows(ratio):
        plan = plan_cache(shape, CacheConfig.tuned(**fields, budget=ratio), total_len, slot_multiple=multiple)
        return plan.full_windows, plan.full_windows + plan.quant_windows

    try:
        small = windows(budget)
    except QEvictError:
        return
    assert all(a <= b for a, b in zip(small, windows(budget * 1.5), strict=True))


@pytest.mark.parametrize("residency", ["exact", "ranked"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_the_plan_is_what_the_arrays_take(residency, batch, platform):
    config = CacheConfig.tuned(budget=0.4, residency=residency, quant_fraction=0.6, ranking="decay")
    policy = make_policy(KVShape(2, 2, 64, "float32"), config, 600, platform=platform)
    cache = init_cache(policy.plan.layout, batch)
    assert sum(x.nbytes for x in jax.tree.leaves(cache)) == batch * policy.plan.kv_bytes
    assert policy.plan.ratio <= 0.4


def test_the_full_cache():
    plan = plan_cache(LLAMA, CacheConfig.full("float32"), 100)
    assert plan.layout is None
    assert plan.full_kv_bytes == 100 * 2 * 4 * 8 * 128 * 32
    policy = make_policy(KVShape(2, 2, 16, "float32"), CacheConfig.full("float16"), 50)
    assert sum(x.nbytes for x in jax.tree.leaves(policy.init(3))) == 3 * policy.plan.kv_bytes


def test_budget_bytes_is_the_budget():
    plan = plan_cache(LLAMA, CacheConfig.tuned(budget_bytes=20_000_000), 4096)
    assert 19_500_000 < plan.kv_bytes <= 20_000_000
    again = plan_cache(LLAMA, CacheConfig.tuned(budget_bytes=plan.kv_bytes), 4096)
    assert (again.full_windows, again.quant_windows) == (plan.full_windows, plan.quant_windows)


def test_a_length_of_nothing():
    with pytest.raises(QEvictError, match="total_len=0"):
        plan_cache(LLAMA, CacheConfig(), 0)


@pytest.mark.parametrize("implementation", ["tpu", "gpu"])
def test_a_kernel_for_another_platform_is_refused(implementation):
    config, shape = CacheConfig.tuned(budget=0.4, implementation=implementation), KVShape(2, 2, 64, "float32")
    assert make_policy(shape, config, 600, platform=implementation).plan.config == config
    with pytest.raises(QEvictError, match=f"'{implementation}' cannot run on 'cpu'; 'auto', 'xla' and 'interpret' can"):
        make_policy(shape, config, 600)


def test_paper_accounting_leaves_out_what_the_paper_leaves_out():
    """Its capacities are larger, and what they really take is still reported."""
    physical = plan_cache(LLAMA, CacheConfig.paper(budget=0.2), 4096)
    paper = plan_cache(LLAMA, CacheConfig.paper(budget=0.2, accounting="paper"), 4096)
    assert paper.quant_windows > physical.quant_windows
    assert paper.kv_bytes > 0.2 * paper.full_kv_bytes >= physical.kv_bytes
