# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""GSM8K (arXiv:2110.14168) from its published files, with worked examples out of its training rows.

Two usual formats: ``cot`` writes "Q:", "A:" and "The answer is N." (arXiv:2201.11903; eight examples, but not the
published ones, which are not part of this library); ``qa`` keeps the rows as they are, with "Question:", "Answer:" and
"#### N" (five examples).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qevict_jax.checks import check_one_of
from qevict_jax.evaluation.answering import Question
from qevict_jax.evaluation.prompting import prompt_tokens
from qevict_jax.evaluation.provenance import read_source
from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.types import QEvictError

_MARKS = re.compile(r"<<[^<>]*>>")  # what the calculator of the paper is to compute
_NUMBER = re.compile(r"-?\$?[0-9][0-9,]*(?:\.[0-9]+)?|-?\$?\.[0-9]+")
STRICT, FLEXIBLE = "strict", "flexible"


@dataclass(frozen=True)
class Format:
    """How questions and answers are written.

    Attributes:
        shots: worked examples in front, as usual.
        question: stands before a question.
        answer: stands before an answer.
        final: stands before the final number.
        strict: what strict-match of lm-evaluation-harness searches for.
        stop: texts that end an answer.
    """

    shots: int
    question: str
    answer: str
    final: str
    strict: re.Pattern[str]
    stop: tuple[str, ...]


FORMATS = {
    "cot": Format(8, "Q: ", "\nA:", "The answer is ", re.compile(r"The answer is (\-?[0-9\.\,]+)."), ("\nQ:", "\n\nQ")),
    "qa": Format(
        5, "Question: ", "\nAnswer:", "#### ", re.compile(r"#### (\-?[0-9\.\,]+)"), ("\nQuestion:", "\n\nQuestion")
    ),
}


@dataclass(frozen=True)
class Row:
    """One problem: its text, the way to its solution without calculator marks, and the number."""

    question: str
    rationale: str
    marked: str
    number: str


def read_rows(file: Path) -> tuple[list[Row], str]:
    """Problems of a file such as test.jsonl, and its SHA-256.

    Raises:
        QEvictError: there is no such file, or a line has no question, answer and final number.
    """
    content, digest = read_source(file)
    rows = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            marked, mark, gold = row["answer"].rpartition("####")
            if not mark or not _NUMBER.search(gold):
                raise ValueError
            marked = marked.strip()
            rows.append(Row(row["question"].strip(), _MARKS.sub("", marked), marked, without_marks(gold)))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise QEvictError(f"{file}, line {number}: not a problem with question, answer and '#### number'") from None
    return rows, digest


def make_questions(
    tokenizer: Tokenizer,
    test: Sequence[Row],
    train: Sequence[Row],
    *,
    format: str = "cot",
    shots: int | None = None,
    count: int | None = None,
    max_new_tokens: int = 256,
    chat: bool = False,
) -> list[Question]:
    """Questions in the order of the file.

    Args:
        tokenizer: the model's.
        test: problems to solve.
        train: the first ones are the worked examples.
        format: a row of `FORMATS`.
        shots: worked examples; None for the format's number.
        count: the first so many problems; None for all.
        max_new_tokens: the most tokens of an answer.
        chat: put the model's chat format around all of it.

    Raises:
        QEvictError: an unknown format, or not enough rows.
    """
    check_one_of("format", format, tuple(FORMATS))
    form = FORMATS[format]
    shots = form.shots if shots is None else shots
    if not 0 <= shots <= len(train):
        raise QEvictError(f"{shots} worked examples were asked for, the training file has {len(train)} rows")
    if count is not None and not 1 <= count <= len(test):
        raise QEvictError(f"{count} samples were asked for, the test file has {len(test)} rows")
    examples = "".join(f"{_solved(form, format, row)}\n\n" for row in train[:shots])
    return [
        Question(
            task="gsm8k",
            index=index,
            tokens=tuple(prompt_tokens(tokenizer, f"{examples}{form.question}{row.question}{form.answer}", chat=chat)),
            references=(row.number,),
            max_new_tokens=max_new_tokens,
            score=partial(score, form, row.number),
            stop=form.stop,
        )
        for index, row in enumerate(test[:count])
    ]


def score(form: Format, gold: str, text: str) -> dict[str, float]:
    """1 or 0: by the number after the format's own words, as it is written, and by the value of the last number."""
    return {
        STRICT: float(strict_answer(form, text) == without_marks(gold)),
        FLEXIBLE: float(flexible_answer(text) == normal(gold)),
    }


def strict_answer(form: Format, text: str) -> str | None:
    """What strict-match of lm-evaluation-harness 0.4.13 finds, as it compares it; None without a match.

    The first match of ``form.strict`` counts, so final words without a number after them are passed over. That of
    ``cot`` ends in any one character: a number that ends the text loses its last digit there, and so it does here.
    """
    found = form.strict.search(text)
    return without_marks(found.group(1)) if found else None


def flexible_answer(text: str) -> str | None:
    """The last number, None without one."""
    found = _NUMBER.findall(text)
    return normal(found[-1]) if found else None


def without_marks(number: str) -> str:
    """A number without separators, currency, spaces or a closing point."""
    return number.strip().replace(",", "").replace("$", "").removesuffix(".")


def normal(number: str) -> str:
    """A number `without_marks`, and without zeros behind the point."""
    number = without_marks(number)
    return number.rstrip("0").rstrip(".") if "." in number else number


def _solved(form: Format, name: str, row: Row) -> str:
    # the chain of thought is one line and ends in a sentence; the other format is the file's own form
    way = f"{' '.join(row.rationale.split())} " if name == "cot" else f"{row.marked}\n"
    end = "." if name == "cot" else ""
    return f"{form.question}{row.question}{form.answer} {way}{form.final}{row.number}{end}"
