# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Answers of many caches from one reading of a prompt are those of `generate`, question-agnostic ones too."""

import pytest

from qevict_jax import CacheConfig, generate
from qevict_jax.evaluation.answering import Answerer, Question, capacity_of
from qevict_jax.evaluation.prompting import question_tokens
from qevict_jax.questions import AGNOSTIC
from qevict_jax.types import QEvictError
from tests.converted import load_converted

CONTEXTS = ["the sand and the sea and the stars over an island " * 3, "a ship far from the island " * 3]
ASKED = ["where is the ship now, and who", "who saw the stars over the sea"]
LOSSY = CacheConfig(policy="snapkv", policy_options="window=4,kernel=3,recent=8", budget=0.5, kv_dtype="float32")
NEW = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_converted(tmp_path_factory.mktemp("answering"), "llama")


def made(model, index):
    text = CONTEXTS[index] + ASKED[index]
    tokens = model.tokenizer.encode(text)
    asked = question_tokens(model.tokenizer, tokens, text, ASKED[index], chat=False)
    return Question("task", index, tuple(tokens), ("",), NEW, lambda text: {"score": 0.0}, question_tokens=asked)


def test_answers_are_those_of_generate_without_the_question_in_view(model):
    questions = [made(model, 0), made(model, 1)]
    answerer = Answerer(model, question_aware=False)
    longest = max(questions, key=lambda question: len(question.tokens))
    capacity = capacity_of(model, longest, exact=True)
    logits, record = answerer.read(questions, capacity)
    ours = answerer.answer(questions, capacity, answerer.policy(LOSSY, capacity), logits, record)
    options = {"question_aware": False, "cache": LOSSY, "max_new_tokens": NEW, "buckets": False}
    theirs = generate(model, CONTEXTS, questions=ASKED, **options)
    assert [result.tokens for result in ours] == [result.tokens for result in theirs]
    assert [result.protocol for result in ours] == [AGNOSTIC] * 2
    assert [result.question_tokens for result in ours] == [result.question_tokens for result in theirs]


def test_a_prompt_without_a_question_cannot_be_compressed_without_it(model):
    tokens = tuple(model.tokenizer.encode(CONTEXTS[0]))
    question = Question("task", 3, tokens, ("",), NEW, lambda text: {})
    Answerer(model).check(question)
    with pytest.raises(QEvictError, match="task 3 has no question after a context; use --question-aware"):
        Answerer(model, question_aware=False).check(question)
