# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Words of a sweep to configurations."""

import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.evaluation import describe, parse_vary
from qevict_jax.types import QEvictError


def test_every_combination_in_order():
    configs = parse_vary(["window=8,16", "residency=ranked, exact", "budget=0.1"], CacheConfig.tuned())
    assert [(c.window, c.residency, c.budget) for c in configs] == [
        (8, "ranked", 0.1), (8, "exact", 0.1), (16, "ranked", 0.1), (16, "exact", 0.1)
    ]  # fmt: skip


def test_nothing_to_vary_is_the_base_itself():
    assert parse_vary([], CacheConfig.paper(budget=0.3)) == [CacheConfig.paper(budget=0.3)]


def test_a_preset_keeps_budget_dtype_and_accounting():
    base = CacheConfig.tuned(budget=0.07, kv_dtype="float16", accounting="paper", recent=99)
    tuned, paper = parse_vary(["preset=tuned,paper"], base)
    kept = {"budget": 0.07, "kv_dtype": "float16", "accounting": "paper"}
    assert (tuned, paper) == (CacheConfig.tuned(**kept), CacheConfig.paper(**kept))
    assert parse_vary(["bits=4", "preset=paper"], base) == [CacheConfig.paper(bits=4, **kept)]


def test_bytes_replace_a_ratio_and_equal_configurations_come_once():
    assert parse_vary(["budget_bytes=4096"], CacheConfig.tuned(budget=0.2)) == [CacheConfig.tuned(budget_bytes=4096)]
    assert parse_vary(["budget=0.2"], CacheConfig.tuned(budget_bytes=4096)) == [CacheConfig.tuned(budget=0.2)]
    assert len(parse_vary(["window=8,8"], CacheConfig.tuned())) == 1


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("windows=8", "fields preset, policy, policy_options, budget"),
        ("window", "write field=value"),
        ("window=x", "window='x' must be an integer"),
        ("window=9", "must be one of 4, 8, 16, 32"),
        ("quant_fraction=half", "must be a number"),
        ("preset=fast", "one of tuned, paper"),
        ("residency=random", "one of exact, ranked"),
        ("budget=nan", "must be a number"),
    ],
)
def test_errors_name_what_is_allowed(word, message):
    with pytest.raises(QEvictError, match=message):
        parse_vary([word], CacheConfig.tuned())


def test_a_field_is_varied_once():
    with pytest.raises(QEvictError, match="varied twice"):
        parse_vary(["window=8", "window=16"], CacheConfig.tuned())


def test_descriptions_start_from_the_nearest_preset():
    assert describe(CacheConfig.tuned(budget=0.1)) == "tuned"
    assert describe(CacheConfig.paper(budget=0.1, accounting="paper")) == "paper (paper accounting)"
    assert describe(CacheConfig.paper(bits=4)) == "paper bits=4"
    assert describe(CacheConfig.full()) == "full bfloat16"
