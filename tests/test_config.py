# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Every field is checked where a configuration is made, and the message says what would work."""

import dataclasses

import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.types import QEvictError

BAD = [
    ({"policy": "lru"}, "policy='lru' must be one of qevict, full, streaming_llm"),
    ({"policy": "snapkv", "policy_options": 5}, "policy_options=5 must be a text like 'window=32,kernel=7'"),
    ({"kv_dtype": "int8"}, "kv_dtype='int8' must be one of bfloat16, float16, float32"),
    ({"window": 7}, "window=7 must be one of 4, 8, 16, 32"),
    ({"window": True}, "window=True must be one of"),
    ({"bits": 5}, "bits=5 must be one of 2, 3, 4"),
    ({"param_bits": 4}, "param_bits=4 must be one of 16, 8"),
    ({"ranking": "snapkv"}, "ranking='snapkv' must be one of cumulative, decay, p_norm, key_norm"),
    ({"residency": "Exact"}, "residency='Exact' must be one of exact, ranked"),
    ({"accounting": "mine"}, "accounting='mine' must be one of physical, paper"),
    ({"sink": -1}, "sink=-1 must be an integer >= 0"),
    ({"sink": 1.5}, "sink=1.5 must be an integer >= 0"),
    ({"recent": 0}, "recent=0 must be an integer >= 1"),
    ({"budget": 0}, "budget=0 must be a positive fraction"),
    ({"budget": -0.2}, "budget=-0.2 must be a positive fraction"),
    ({"budget": float("nan")}, "budget=nan must be a number"),
    ({"budget": float("inf")}, "budget=inf must be a positive fraction"),
    ({"budget": "20%"}, "budget='20%' must be a number"),
    ({"budget_bytes": 0}, "budget_bytes=0 must be an integer >= 1"),
    ({"budget_bytes": 1e6}, "budget_bytes=1000000.0 must be an integer"),
    ({"budget": 0.2, "budget_bytes": 5}, "budget=0.2 and budget_bytes=5 exclude each other"),
    ({"quant_fraction": 1.1}, "quant_fraction=1.1 must lie in 0..1"),
    ({"quant_fraction": True}, "quant_fraction=True must be a number"),
    ({"prefill_scores": "last"}, "prefill_scores='last' must be 'all', 'mean' or 'last:N'"),
    ({"prefill_scores": "last:0"}, "prefill_scores='last:0' must be"),
    ({"prefill_scores": 32}, "prefill_scores=32 must be"),
    ({"prefill_pool": 0}, "prefill_pool=0 must be an integer >= 1"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[str(fields) for fields, _ in BAD])
def test_bad_values(fields, message):
    with pytest.raises(QEvictError) as error:
        CacheConfig(**fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_field_of_a_preset_is_named():
    for preset in (CacheConfig.tuned, CacheConfig.paper):
        with pytest.raises(QEvictError, match="no cache setting 'omega'; there are policy, policy_options, budget"):
            preset(omega=8)


def test_paper_preset():
    paper = CacheConfig.paper()
    expected = {
        "window": 8, "sink": 5, "recent": 32, "quant_fraction": 0.7, "bits": 2, "param_bits": 16,
        "ranking": "cumulative", "prefill_scores": "all", "prefill_pool": 1, "residency": "ranked",
        "budget": 0.2,
    }  # fmt: skip
    assert {name: getattr(paper, name) for name in expected} == expected


def test_the_default_is_tuned():
    assert CacheConfig() == CacheConfig.tuned()
    assert CacheConfig().budget == 0.2


def test_presets_take_changes():
    assert CacheConfig.paper(bits=4) == dataclasses.replace(CacheConfig.paper(), bits=4)
    in_bytes = CacheConfig.tuned(budget_bytes=10**6)
    assert (in_bytes.budget, in_bytes.budget_bytes) == (None, 10**6)
    assert CacheConfig.full("float32").policy == "full"


def test_hashable_and_frozen():
    assert hash(CacheConfig()) == hash(CacheConfig())
    with pytest.raises(dataclasses.FrozenInstanceError):
        CacheConfig().bits = 2


@pytest.mark.parametrize("window", [4, 8, 16, 32])
@pytest.mark.parametrize("recent", [1, 5, 32, 33])
def test_ring_holds_what_may_be_recent(window, recent):
    """Between two events up to ``recent + 2W - 1`` tokens; a multiple of W, and no window more than needed."""
    ring = CacheConfig(window=window, recent=recent).ring
    assert ring % window == 0
    assert 0 <= ring - (recent + 2 * window - 1) < window


def test_last_queries():
    assert CacheConfig(prefill_scores="last:17").last_queries == 17
    assert CacheConfig(prefill_scores="all").last_queries is None
