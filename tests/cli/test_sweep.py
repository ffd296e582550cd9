# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Combinations of ``field=value,value``."""

import pytest

from qevict_jax.cli.sweep import sweep
from qevict_jax.config import CacheConfig
from qevict_jax.types import QEvictError


def test_all_combinations_in_order():
    rows = sweep({"kv_dtype": "float32"}, ["window=8,16", "prefill-scores=all,last:32"])
    assert [label for label, _ in rows] == [
        "window=8 prefill_scores=all",
        "window=8 prefill_scores=last:32",
        "window=16 prefill_scores=all",
        "window=16 prefill_scores=last:32",
    ]
    assert rows[2][1](0.1) == CacheConfig(budget=0.1, kv_dtype="float32", window=16, prefill_scores="all")


def test_presets_can_vary():
    rows = sweep({"preset": "tuned", "bits": 3}, ["preset=tuned,paper"])
    assert [config(0.1) for _, config in rows] == [
        CacheConfig.tuned(budget=0.1, bits=3),
        CacheConfig.paper(budget=0.1, bits=3),
    ]


def test_nothing_varies():
    ((label, config),) = sweep({"preset": "paper"}, [])
    assert label == "paper" and config(0.2) == CacheConfig.paper(budget=0.2)


@pytest.mark.parametrize(
    "vary, message",
    [
        (["windows=8"], "FIELD=VALUE"),
        (["window"], "FIELD=VALUE"),
        (["budget=0.1"], "FIELD=VALUE"),
        (["window=eight"], "window='eight' must be a number"),
        (["window=8", "window=16"], "twice"),
        (["bits=2"], "both vary and be given"),
        (["window=7"], "window=7 must be one of"),
        (["preset=best"], "tuned, paper"),
    ],
)
def test_bad_sweeps_are_named(vary, message):
    with pytest.raises(QEvictError, match=message):
        sweep({"bits": 3}, vary)
