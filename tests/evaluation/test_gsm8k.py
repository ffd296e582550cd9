# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""GSM8K: prompts of both formats, and answers found in text."""

import json

import pytest

from qevict_jax.evaluation.gsm8k import (
    FORMATS,
    flexible_answer,
    make_questions,
    normal,
    read_rows,
    strict_answer,
)
from qevict_jax.types import QEvictError
from tests.evaluation.text_tokenizer import decode, tokenizer


def rows(directory, count):
    lines = [
        {
            "question": f"What is {n} and {n}?",
            "answer": f"It is <<{n}+{n}={2 * n}>>{2 * n} in all.\nSo much.\n#### 1,{n:03}",
        }
        for n in range(count)
    ]
    file = directory / f"{count}.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return read_rows(file)[0]


def test_the_chain_of_thought_is_one_line_without_marks(tmp_path):
    train = rows(tmp_path, 10)
    (question,) = make_questions(tokenizer(), train[9:], train, count=1)
    text = decode(question.tokens)
    assert text.startswith("Q: What is 0 and 0?\nA: It is 0 in all. So much. The answer is 1000.\n\nQ: What is 1 and")
    assert text.endswith("The answer is 1007.\n\nQ: What is 9 and 9?\nA:") and text.count("A:") == 9
    assert question.stop[0] == "\nQ:" and question.references == ("1009",)


def test_the_other_format_keeps_the_rows(tmp_path):
    train = rows(tmp_path, 10)
    (question,) = make_questions(tokenizer(), train[9:], train, format="qa", chat=True)
    text = decode(question.tokens)
    assert text.startswith(
        "[user]Question: What is 0 and 0?\nAnswer: It is <<0+0=0>>0 in all.\nSo much.\n#### 1000\n\nQuestion: What is 1"
    )
    assert text.endswith("Question: What is 9 and 9?\nAnswer:[assistant]") and text.count("Answer:") == 6
    (alone,) = make_questions(tokenizer(), train[9:], train, shots=0)
    assert decode(alone.tokens) == "Q: What is 9 and 9?\nA:"


@pytest.mark.parametrize(
    "format, text, strict, flexible",
    [
        ("cot", "He has 3 and 4. The answer is 7.", "7", "7"),
        ("cot", "The answer is 1,234.50. Q: 9", "1234.50", "9"),
        ("cot", "The answer is $18.00.", None, "18"),
        ("cot", "The answer is -12.0.", "-12.0", "-12"),
        ("cot", "The answer is clear. The answer is 18.", "18", "18"),
        ("cot", "The answer is 7, so 8", "7", "8"),
        ("cot", "The answer is 18", "1", "18"),  # the pattern's last character is one of the text's
        ("cot", "the answer is 7 apples", None, "7"),
        ("cot", "The answer is seven. 8", None, "8"),
        ("cot", "The answer is 5. The answer is 6.", "5", "6"),
        ("qa", "3+4=<<3+4=7>>7\n#### 7", "7", "7"),
        ("qa", "#### 1,000,000", "1000000", "1000000"),
        ("qa", "#### $.50", None, ".5"),
        ("qa", "#### so #### 18", "18", "18"),
        ("qa", "The answer is 7", None, "7"),
        ("qa", "no number", None, None),
    ],
)
def test_extraction(format, text, strict, flexible):
    assert strict_answer(FORMATS[format], text) == strict
    assert flexible_answer(text) == flexible


def test_scores(tmp_path):
    train = rows(tmp_path, 10)
    (question,) = make_questions(tokenizer(), train[9:], train)
    assert question.score("The answer is 1,009.") == {"strict": 1, "flexible": 1}
    assert question.score("It is 1009") == {"strict": 0, "flexible": 1}
    assert question.score("The answer is 1009. No, 8.") == {"strict": 1, "flexible": 0}


def test_numbers_of_the_gold_answers():
    assert [normal(text) for text in (" 1,200 ", "$5", "7.", "7.50", "70", "-3.0")] == [
        "1200",
        "5",
        "7",
        "7.5",
        "70",
        "-3",
    ]


@pytest.mark.parametrize(
    "content", ["{}", '{"question": "a", "answer": "5"}', '{"question": "a", "answer": "#### x"}', "x"]
)
def test_files_of_another_form(tmp_path, content):
    (tmp_path / "rows.jsonl").write_text("\n" + content)
    with pytest.raises(QEvictError, match="line 2"):
        read_rows(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"format": "x"}, "one of cot, qa"),
        ({"shots": 9}, "has 4 rows"),
        ({}, "has 4 rows"),
        ({"shots": 0, "count": 5}, "5 samples"),
    ],
)
def test_bad_requests(tmp_path, options, message):
    few = rows(tmp_path, 4)
    with pytest.raises(QEvictError, match=message):
        make_questions(tokenizer(), few, few, **options)
