# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Contexts with questions: the same tokens in both protocols, compressed before or after the question."""

import numpy as np
import pytest

from qevict_jax import CacheConfig, QEvictError, generate, stream
from qevict_jax.evaluation import fidelity, to_json
from qevict_jax.questions import AGNOSTIC, AWARE, split_prompt
from tests.converted import load_converted

CONTEXTS = ["the sand and the sea and the stars over an island ", "another shore, where the sun is "]
QUESTIONS = ["and which of the stars is over there?", "on?"]
LOSSY = CacheConfig(policy="snapkv", policy_options="window=4,kernel=3,recent=8", budget=0.5, kv_dtype="float32")
FULL = CacheConfig.full("float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_converted(tmp_path_factory.mktemp("questions"), "llama")


def test_the_parts_are_the_prompt(model):
    context, question = split_prompt(model, CONTEXTS[0], QUESTIONS[0])
    assert model.tokenizer.decode(context + question) == CONTEXTS[0] + QUESTIONS[0]
    assert model.tokenizer.bos_id == context[0] and model.tokenizer.bos_id not in question
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": CONTEXTS[0]}]
    context, question = split_prompt(model, messages, QUESTIONS[0])
    messages[1] = {"role": "user", "content": CONTEXTS[0] + QUESTIONS[0]}
    assert model.tokenizer.decode(context + question) == model.tokenizer.decode(model.tokenizer.chat(messages))
    assert model.tokenizer.decode(question).startswith(QUESTIONS[0])


def test_question_aware_is_the_prompt_as_one(model):
    parts = [split_prompt(model, *pair) for pair in zip(CONTEXTS, QUESTIONS, strict=True)]
    whole = generate(model, [a + b for a, b in parts], cache=LOSSY, max_new_tokens=9)
    aware = generate(model, CONTEXTS, questions=QUESTIONS, cache=LOSSY, max_new_tokens=9)
    assert [x.tokens for x in whole] == [x.tokens for x in aware]
    assert [(x.protocol, x.question_tokens) for x in aware] == [(AWARE, len(b)) for _, b in parts]
    assert [(x.protocol, x.question_tokens) for x in whole] == [(None, 0)] * 2


def test_a_full_cache_answers_the_same_either_way(model):
    aware, agnostic = (
        generate(model, CONTEXTS, questions=QUESTIONS, question_aware=aware, cache=FULL, max_new_tokens=9)
        for aware in (True, False)
    )
    assert [x.tokens for x in aware] == [x.tokens for x in agnostic]
    assert [x.prompt_tokens for x in aware] == [x.prompt_tokens for x in agnostic]
    assert {x.protocol for x in agnostic} == {AGNOSTIC}


def test_question_agnostic_rows_are_apart(model):
    """The shorter question of a batch gives what it gives alone, streamed."""
    options = {"question_aware": False, "cache": LOSSY, "max_new_tokens": 9}
    row = generate(model, CONTEXTS, questions=QUESTIONS, **options)[1]
    pieces = stream(model, CONTEXTS[1], question=QUESTIONS[1], **options)
    assert "".join(pieces) == row.text
    assert pieces.result.tokens == row.tokens and pieces.result.protocol == AGNOSTIC


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"questions": ["a"]}, "there are 1 questions for 2 prompts"),
        ({"questions": ["a", " "]}, "question 1 is empty"),
        ({"question_aware": False}, "no effect without questions"),
    ],
)
def test_bad_questions(model, arguments, message):
    with pytest.raises(QEvictError, match=message):
        generate(model, CONTEXTS, **arguments)


def test_questions_need_a_text(model):
    with pytest.raises(QEvictError, match="prompt 0 has a question, so it must be a text"):
        generate(model, [[1, 2, 3]], questions=["a"])
    with pytest.raises(QEvictError, match="prompt 1 is empty"):
        generate(model, ["a", ""], questions=["a", "b"])


def test_fidelity_without_the_question_in_view(model):
    """What is compared is the same, what is kept is not."""
    tokens = np.random.default_rng(0).integers(0, 256, 200).tolist()
    run = {"prefill": 60, "steps": 20, "offsets": (0, 40)}
    aware = fidelity(model, tokens, [LOSSY], **run)
    (agnostic,) = fidelity(model, tokens, [LOSSY], question=12, **run)
    assert agnostic.full_nll == pytest.approx(aware[0].full_nll, abs=1e-4)
    assert agnostic.kl != pytest.approx(aware[0].kl, rel=1e-2)
    assert agnostic.kv_bytes == aware[0].kv_bytes
    document = to_json([aware[0], agnostic], model="m", text="t", **run)
    assert [(row["protocol"], row["question_tokens"]) for row in document["results"]] == [(AWARE, 0), (AGNOSTIC, 12)]
    with pytest.raises(QEvictError, match="question=60 must lie in 0 .. 59"):
        fidelity(model, tokens, [LOSSY], question=60, **run)
