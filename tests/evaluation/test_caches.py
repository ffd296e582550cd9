# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Caches by name."""

import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.evaluation.caches import parse_caches
from qevict_jax.types import QEvictError


def test_every_cache_at_every_budget_after_the_full_one():
    caches = parse_caches(["paper-ruler", "tuned  window=16"], [0.2, 0.1])
    assert [cache.label for cache in caches] == [
        "full",
        "paper-ruler @ 0.2",
        "paper-ruler @ 0.1",
        "tuned window=16 @ 0.2",
        "tuned window=16 @ 0.1",
    ]
    assert caches[0].config == CacheConfig.full()
    assert caches[1].config == CacheConfig.paper(budget=0.2, recent=64)
    assert caches[4].config == CacheConfig.tuned(budget=0.1, window=16)


def test_presets_of_the_paper():
    (longbench,) = parse_caches(["paper-longbench bits=4"], [0.05], full=False, kv_dtype="float32")
    assert longbench.config == CacheConfig.paper(recent=128, bits=4, budget=0.05, kv_dtype="float32")
    (gsm8k,) = parse_caches(["paper-gsm8k"], [0.2], full=False)
    # a quarter of a budget of 200 tokens
    assert gsm8k.at(1000) == CacheConfig.paper(budget=0.2, recent=50)
    (larger,) = parse_caches(["paper-gsm8k"], [1.0], full=False)
    assert larger.at(1000).recent == 250
    (own,) = parse_caches(["paper-gsm8k recent=40"], [0.2], full=False)
    assert own.at(1000) == CacheConfig.paper(budget=0.2, recent=40)


def test_a_budget_of_its_own_stands_once():
    assert [c.label for c in parse_caches(["tuned budget=0.3", "full"], [0.2, 0.1])] == [
        "full",
        "tuned budget=0.3 @ 0.3",
    ]
    (cache,) = parse_caches(["paper budget_bytes=100000"], [0.2, 0.1], full=False)
    assert cache.config.budget is None and cache.label.endswith("@ 100000 bytes")


@pytest.mark.parametrize(
    "spec, message",
    [
        ("", "begin with a preset or a policy"),
        ("fast", "begin with a preset or a policy"),
        ("tuned bits", "write field=value"),
        ("tuned policy=full", "write field=value"),
        ("tuned bits=3 bits=4", "bits is there twice"),
        ("tuned bits=x", "must be an integer"),
        ("tuned bits=7", "must be one of"),
        ("tuned recent_share=2", "between 0 and 1"),
        ("tuned recent_share=0.25 recent=8", "exclude each other"),
        ("full recent_share=0.25", "has no recent tokens"),
        ("full bits=4", "no effect"),
        ("tuned budget=20", "a budget of 20 is 2000% of the full cache; give a fraction, at most 1: 0.2 is 20%"),
    ],
)
def test_bad_caches(spec, message):
    with pytest.raises(QEvictError, match=message):
        parse_caches([spec], [0.2], full=False)


def test_none_and_twice():
    with pytest.raises(QEvictError, match="twice"):
        parse_caches(["paper", "paper"], [0.2])
    with pytest.raises(QEvictError, match="no cache"):
        parse_caches([], [0.2], full=False)
