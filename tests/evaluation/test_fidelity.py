# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Fidelity on a random model: an unlimited cache is the full cache, fewer bytes cost accuracy, bytes are real."""

import dataclasses

import jax
import numpy as np
import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.evaluation import fidelity
from qevict_jax.models import LanguageModel
from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.policies import make_policy
from qevict_jax.types import QEvictError
from tests.random_model import random_model
from tests.tiny_tokenizer import BOS, token_id, write_tokenizer

SMALL = {"window": 4, "sink": 2, "recent": 4, "kv_dtype": "float32", "prefill_scores": "last:8"}
RUN = {"prefill": 96, "steps": 12}
TEXT = np.random.default_rng(11).integers(0, 64, 400).tolist()


OFFSETS = (0, 100, 200, 290)  # the same in every test: one compilation per configuration


def tuned(**changes) -> CacheConfig:
    return CacheConfig.tuned(**(SMALL | changes))


TUNED = tuned(budget=0.25)
PAPER = CacheConfig.paper(**(SMALL | {"budget": 0.3, "accounting": "paper", "prefill_scores": "all"}))


@pytest.fixture(scope="module")
def model():
    return LanguageModel(*random_model("plain"))


def test_unlimited_budget_is_the_full_cache(model):
    (result,) = fidelity(model, TEXT, [tuned(budget=3.0, quant_fraction=0.0)], offsets=OFFSETS, **RUN)
    assert max(map(abs, result.kl)) < 1e-5
    assert result.top1 == (1.0,) * len(OFFSETS)
    assert max(map(abs, result.nll_difference)) < 1e-4


def test_fewer_bytes_cost_accuracy(model):
    configs = [tuned(budget=budget) for budget in (0.35, 0.25, 0.18)]
    generous, middle, tight = fidelity(model, TEXT, configs, offsets=OFFSETS, **RUN)
    assert 0 < generous.mean_kl < middle.mean_kl < tight.mean_kl
    assert generous.spread_kl == pytest.approx(np.std(generous.kl, ddof=1))
    assert generous.ratio_allocated > middle.ratio_allocated > tight.ratio_allocated


@pytest.mark.parametrize("config", [TUNED, PAPER], ids=["physical", "paper"])
def test_bytes_are_those_of_the_arrays(model, config):
    (result,) = fidelity(model, TEXT, [config], offsets=OFFSETS, **RUN)
    policy = make_policy(model.config.kv_shape(), config, 108)
    assert result.kv_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(policy.init(1))) == result.plan.kv_bytes
    assert result.full_kv_bytes == model.config.kv_shape().bytes_per_token * 108
    assert (result.ratio_allocated <= config.budget) == (config.accounting == "physical")


def test_offsets_of_one_batch_are_separate_runs(model):
    (together,) = fidelity(model, TEXT, [TUNED], offsets=OFFSETS, **RUN)
    for i in (1, 3):
        (alone,) = fidelity(model, TEXT, [TUNED], offsets=OFFSETS[i : i + 1], **RUN)
        np.testing.assert_allclose([together.kl[i], together.full_nll[i]], [alone.kl[0], alone.full_nll[0]], atol=1e-4)


def test_a_budget_too_small_is_a_row_with_its_reason(model):
    results = fidelity(model, TEXT, [TUNED, tuned(budget=0.01), PAPER], offsets=OFFSETS, **RUN)
    assert [result.error is None for result in results] == [True, False, True]
    assert "smallest budget" in results[1].error
    assert [result.config.budget for result in results] == [TUNED.budget, 0.01, PAPER.budget]


def test_rows_start_with_the_bos_of_a_model_that_uses_one(model, tmp_path):
    write_tokenizer(tmp_path, has_bos=True, template="with_bos", config_style="v5")
    with_bos = dataclasses.replace(model, tokenizer=Tokenizer.load(tmp_path))
    (expected,) = fidelity(model, [token_id(BOS), *TEXT[20:]], [TUNED], **RUN)
    (got,) = fidelity(with_bos, TEXT, [TUNED], offsets=(20,), **RUN)
    assert got.kl == expected.kl


def test_a_text_too_short_names_the_offsets_that_work(model):
    with pytest.raises(QEvictError, match="offsets from 0 to 291 work"):
        fidelity(model, TEXT, [tuned()], offsets=(292,), **RUN)
    with pytest.raises(QEvictError, match="use a longer text"):
        fidelity(model, TEXT[:50], [tuned()], **RUN)
    with pytest.raises(QEvictError, match="context of 8192"):
        fidelity(model, TEXT, [tuned()], prefill=9000)
