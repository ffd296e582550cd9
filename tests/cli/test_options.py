# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Options made from the fields of records."""

import json
from dataclasses import fields

import pytest

from qevict_jax.cli.options import cache_config, field_help
from qevict_jax.config import CacheConfig
from qevict_jax.sampling import Sampling
from qevict_jax.types import QEvictError

CHANGED = {
    "policy": "full",
    "policy_options": "",
    "budget": 0.5,
    "budget_bytes": 2_000_000_000,
    "kv_dtype": "float32",
    "window": 16,
    "sink": 8,
    "recent": 64,
    "quant_fraction": 0.5,
    "bits": 4,
    "param_bits": 16,
    "ranking": "decay",
    "prefill_scores": "all",
    "prefill_pool": 5,
    "residency": "ranked",
    "accounting": "paper",
    "implementation": "xla",
}


@pytest.mark.parametrize("record", [CacheConfig, Sampling])
def test_every_field_has_help(record):
    texts = field_help(record)
    assert list(texts) == [field.name for field in fields(record)]
    assert all(texts.values())


def test_the_table_of_changes_has_every_field():
    assert list(CHANGED) == [field.name for field in fields(CacheConfig)]


@pytest.mark.parametrize(
    "names", [["policy"], ["budget_bytes"], [*CHANGED.keys() - {"policy", "policy_options", "budget_bytes"}]]
)
def test_every_field_is_an_option_that_takes_effect(qevict, names):
    options = [text for name in names for text in ("--" + name.replace("_", "-"), CHANGED[name])]
    result = qevict("plan", "llama-3.1-8b", "--json", *options)
    assert result.exit_code == 0, result.output
    cache = json.loads(result.stdout.splitlines()[-1])["cache"]
    assert {name: cache[name] for name in names} == {name: CHANGED[name] for name in names}


def test_presets():
    assert cache_config() == CacheConfig.tuned()
    assert cache_config("paper", bits=3, window=None) == CacheConfig.paper(bits=3)
    assert cache_config(budget_bytes=10**6).budget is None
    assert cache_config(policy="full", kv_dtype="float32") == CacheConfig.full("float32")
    assert cache_config(policy="full", implementation="xla").implementation == "xla"


def test_idle_options_are_refused():
    with pytest.raises(QEvictError, match="--preset paper, --bits"):
        cache_config("paper", policy="full", bits=3)


def test_policy_options_take_effect(qevict, refused):
    words = ("plan", "llama-3.1-8b", "--policy", "snapkv", "--policy-options")
    result = qevict(*words, "window=64", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    assert document["cache"]["policy_options"] == "window=64" and document["capacities"]["recent tokens"] == 64
    assert "tokens per head" in result.stdout
    assert "no option 'windows=64'; there are window=32" in refused(*words, "windows=64")
    assert "no effect with --policy snapkv: --bits" in refused(*words, "window=64", "--bits", "3")
