# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks on a mesh: prompts read once, admitted by a cache and answered are what `generate` answers there."""

import pytest

from qevict_jax import CacheConfig, QEvictError, generate
from qevict_jax.evaluation.answering import Answerer, Question, capacity_of
from qevict_jax.evaluation.fidelity import fidelity
from qevict_jax.mesh import MeshShape
from tests.converted import load_converted

LOSSY = CacheConfig(budget=0.6, kv_dtype="float32", recent=8, quant_fraction=0.4)
NEW = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_converted(tmp_path_factory.mktemp("answering"), "llama").on(MeshShape(2, 2))


@pytest.mark.slow
def test_three_questions_on_two_parts_of_a_batch(model):
    prompts = [[*range(start, start + 48)] for start in (0, 50, 100)]
    questions = [
        Question("task", index, tuple(prompt), ("",), NEW, lambda text: {}) for index, prompt in enumerate(prompts)
    ]
    answerer, capacity = Answerer(model), capacity_of(model, questions[0], exact=True)
    logits, record = answerer.read(questions, capacity)
    found = answerer.answer(questions, capacity, answerer.policy(LOSSY, capacity), logits, record)
    expected = generate(model, prompts, cache=LOSSY, max_new_tokens=NEW, buckets=False)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.tokens, ours.kv_bytes, ours.full_kv_bytes) == (
            theirs.tokens,
            theirs.kv_bytes,
            theirs.full_kv_bytes,
        )


def test_what_does_not_know_of_meshes_says_so(model):
    with pytest.raises(QEvictError, match="fidelity runs on one device; load the model without a mesh"):
        fidelity(model, [*range(100)], [LOSSY], prefill=64, steps=8)
