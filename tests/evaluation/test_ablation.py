# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The caches and tasks of the paper's ablations."""

import inspect

import pytest

from qevict_jax.cli import ablation as command
from qevict_jax.evaluation.ablation import ABLATIONS, ablation_specs
from qevict_jax.evaluation.caches import parse_caches
from qevict_jax.evaluation.longbench import PAPER_TASKS
from qevict_jax.policies import make_policy
from qevict_jax.types import KVShape, QEvictError

LLAMA_8B = KVShape(layers=32, kv_heads=8, head_dim=128, dtype="bfloat16")


def test_the_tasks_of_the_tables():
    assert {what: len(ablation.longbench) for what, ablation in ABLATIONS.items()} == {
        "windows": 4, "fraction": 4, "bits": 4, "ranking": 14, "pool": 4
    }  # fmt: skip
    assert set(ABLATIONS["ranking"].longbench) - set(PAPER_TASKS) == {"passage_count", "passage_retrieval_en"}


@pytest.mark.parametrize("what", ABLATIONS)
def test_every_value_fits_the_default_budget_at_the_default_lengths(what):
    defaults = {name: option.default for name, option in inspect.signature(command.run).parameters.items()}
    assert defaults["budgets"] == "0.05"
    for cache in parse_caches(ablation_specs(what, "paper"), [float(defaults["budgets"])], full=False):
        for total in (int(defaults["lengths"]), defaults["prefill"] + defaults["steps"]):
            make_policy(LLAMA_8B, cache.at(total), total)


def test_bad_requests():
    with pytest.raises(QEvictError, match="must be one of windows, fraction, bits, ranking, pool"):
        ablation_specs("sinks", "paper")
    with pytest.raises(QEvictError, match="sets bits, which is what varies"):
        ablation_specs("bits", "paper bits=3")
