# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What RULER's samples are made of: a long text to hide things in, filler lines, words, and question files."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from qevict_jax.evaluation.provenance import read_source, text_hash
from qevict_jax.types import QEvictError

NOISE = "Grass is green. The sky is blue. The sun is yellow. Off we go. The road leads there and back."


@dataclass(frozen=True)
class Reading:
    """A question with the paragraphs that answer it and those that stand beside it.

    Attributes:
        question: what is asked.
        answers: every accepted answer.
        gold: paragraphs that must be in the sample, as indices of the paragraphs of the file.
        beside: paragraphs of the same article, which come in first.
    """

    question: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    beside: tuple[int, ...] = ()


@dataclass(frozen=True)
class Readings:
    """Questions over a common store of paragraphs."""

    questions: tuple[Reading, ...]
    paragraphs: tuple[str, ...]


def haystack_text(source: str) -> tuple[str, str]:
    """A long text, and its SHA-256.

    Args:
        source: ``"python"``, the language reference that Python ships for its help (it differs between versions);
            ``"noise"``, the filler; else a UTF-8 file, for instance the essays that RULER uses.

    Raises:
        QEvictError: there is no such file, or it holds no words.
    """
    if source in ("python", "noise"):
        text = NOISE if source == "noise" else "\n".join(topics[name] for name in sorted(topics))
        return text, text_hash(text)
    text, digest = read_source(Path(source))
    if not text.split():
        raise QEvictError(f"{source} holds no words to hide something in")
    return text, digest


@cache
def words(*categories: str) -> tuple[str, ...]:
    """Words of wonderwords ("adjective", "noun", "verb"), sorted, each once."""
    from wonderwords import RandomWord  # its lists are read from files when it is imported

    return tuple(sorted(set(RandomWord().filter(include_categories=list(categories)))))


def read_squad(file: Path) -> tuple[Readings, str]:
    """The answerable questions of a SQuAD 2.0 file (https://rajpurkar.github.io/SQuAD-explorer/), and its SHA-256.

    Raises:
        QEvictError: there is no such file, or it is not of this form.
    """
    content, digest = _read(file)
    paragraphs: list[str] = []
    questions: list[Reading] = []
    try:
        for article in content["data"]:
            first = len(paragraphs)
            paragraphs += [paragraph["context"] for paragraph in article["paragraphs"]]
            article_range = range(first, len(paragraphs))
            for index, paragraph in zip(article_range, article["paragraphs"], strict=True):
                beside = tuple(other for other in article_range if other != index)
                for question in paragraph["qas"]:
                    answers = tuple(dict.fromkeys(answer["text"] for answer in question["answers"]))
                    if answers and not question.get("is_impossible"):
                        questions.append(Reading(question["question"], answers, (index,), beside))
    except (KeyError, TypeError):
        raise QEvictError(f"{file} is not a SQuAD 2.0 file") from None
    return Readings(tuple(questions), tuple(paragraphs)), digest


def read_hotpot(file: Path) -> tuple[Readings, str]:
    """The questions of a HotpotQA file in the distractor setting (https://hotpotqa.github.io), and its SHA-256.

    Raises:
        QEvictError: there is no such file, or it is not of this form.
    """
    content, digest = _read(file)
    store: dict[str, int] = {}
    questions: list[Reading] = []
    try:
        for row in content:
            texts = [f"{title}\n{''.join(sentences)}" for title, sentences in row["context"]]
            gold = tuple(store.setdefault(text, len(store)) for text in dict.fromkeys(texts))
            questions.append(Reading(row["question"], (row["answer"],), gold))
    except (KeyError, TypeError, ValueError):
        raise QEvictError(f"{file} is not a HotpotQA file") from None
    return Readings(tuple(questions), tuple(store)), digest


def _read(file: Path) -> tuple[Any, str]:
    text, digest = read_source(file)
    try:
        return json.loads(text), digest
    except ValueError as error:
        raise QEvictError(f"{file} is not JSON: {error}") from None
