# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""LongBench's rows as questions for a model."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from qevict_jax.evaluation.answering import Question
from qevict_jax.evaluation.longbench.tasks import TASKS, TaskRow
from qevict_jax.evaluation.prompting import prompt_tokens, question_tokens, truncate_middle
from qevict_jax.evaluation.provenance import read_source
from qevict_jax.evaluation.requests import check_tasks
from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.types import QEvictError


def make_questions(
    tokenizer: Tokenizer,
    directory: Path,
    tasks: Sequence[str],
    *,
    context: int,
    chat: bool,
    limit: int | None = None,
    count: int | None = None,
    shortest: int = 1,
    longest: int | None = None,
    prompts: Mapping[str, str] | None = None,
) -> tuple[list[Question], dict[str, str]]:
    """Questions of some tasks, and the SHA-256 of each file.

    A filled template of more than ``limit`` tokens keeps the first and the last half of them; chat format and answer
    are no part of it, as in the published code. It is cut further where the model has no room for all of them.

    Args:
        tokenizer: the model's.
        directory: holds ``TASK.jsonl``, as LongBench publishes them.
        tasks: names of `TASKS`.
        context: tokens of prompt and answer together that the model can hold.
        chat: the model's chat format is used where the task has it.
        limit: tokens of a filled template before the chat format; None for `published_limit`.
        count: the first so many rows of each task; None for all.
        shortest: leave out rows with prompts of fewer tokens, which a small budget cannot hold.
        longest: leave out rows whose prompt has more tokens or would have to be cut; None cuts them instead.
        prompts: other prompts by task, with ``{context}`` and ``{input}``.

    Raises:
        QEvictError: an unknown task, one named twice, a file that is missing or not of this form, or a
            limit or context that leaves no prompt.
    """
    check_tasks("LongBench", tasks, TASKS)
    if count is not None and count < 1:
        raise QEvictError(f"{count} samples must be at least 1")
    limit = published_limit(context) if limit is None else limit
    if limit < 1:
        raise QEvictError(f"a limit of {limit} tokens leaves nothing of a prompt; it must be at least 1")
    questions: list[Question] = []
    hashes = {}
    for name in tasks:
        row = TASKS[name]
        template = (prompts or {}).get(name, row.prompt)
        rows, hashes[f"{name}.jsonl"] = read_rows(directory / f"{name}.jsonl")
        made = 0
        for index, content in enumerate(rows):
            if made == count:
                break
            text, asked = _fill(template, content)
            bound = context - row.max_new_tokens
            try:
                whole, kept = _fit(tokenizer, text, limit, bound, chat=chat and row.chat)
            except QEvictError as error:
                raise QEvictError(
                    f"{name}: {error} beside an answer of {row.max_new_tokens} tokens in a context of {context}; "
                    "give a larger --context"
                ) from None
            if len(whole) < shortest or longest is not None and (kept != text or len(whole) > longest):
                continue
            tail = question_tokens(tokenizer, whole, kept, asked, chat=chat and row.chat)
            questions.append(_question(name, index, row, whole, tail, content))
            made += 1
        if not made:
            raise QEvictError(f"{name}: no row has a prompt of {shortest} to {longest or 'any number of'} tokens")
    return questions, hashes


def published_limit(context: int) -> int:
    """The tokens that LongBench's code leaves of a filled template: 3,500 for a model of 4K, 31,500 for one of 32K.

    It counts 1,000 tokens for each K and keeps 500 back; where that is nothing, half of the context is left.
    """
    return max(1000 * (context // 1024) - 500, context // 2)


def read_rows(file: Path) -> tuple[list[dict[str, Any]], str]:
    """Rows with ``context``, ``input``, ``answers`` and ``all_classes``, and the SHA-256 of the file.

    Raises:
        QEvictError: there is no such file, or a line is not of this form.
    """
    if not file.is_file():
        raise QEvictError(f"{file} is not there; LongBench's data.zip holds it (https://github.com/THUDM/LongBench)")
    content, digest = read_source(file)
    rows = []
    # only line feeds end a row: texts hold other line separators
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not (isinstance(row["context"], str) and isinstance(row["input"], str) and row["answers"]):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise QEvictError(f"{file}, line {number}: not a row with context, input and answers") from None
        rows.append(row)
    return rows, digest


def read_prompts(file: Path) -> dict[str, str]:
    """Prompts by task from a JSON file, such as LongBench's ``dataset2prompt.json``.

    Raises:
        QEvictError: it is not a JSON object of texts, or one does not hold ``{context}``.
    """
    try:
        content = json.loads(read_source(file)[0])
    except ValueError as error:
        raise error if isinstance(error, QEvictError) else QEvictError(f"{file} is not JSON: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(text, str) for text in content.values()):
        raise QEvictError(f"{file} must hold a JSON object from task to prompt")
    without = [name for name, text in content.items() if name in TASKS and "{context}" not in text]
    if without:
        raise QEvictError(f"{file}: {', '.join(without)} have no {{context}}")
    return content


def score(row: TaskRow, answers: Sequence[str], classes: Sequence[str], text: str) -> dict[str, float]:
    """The best score over the references, after the rules of the task for what counts of an answer."""
    if row.first_line:
        text = text.lstrip("\n").split("\n")[0]
    return {"score": max(row.metric(text, answer, classes) for answer in answers)}


def _question(name: str, index: int, row: TaskRow, tokens: Sequence[int], tail: int, content: Mapping) -> Question:
    answers = tuple(str(answer) for answer in content["answers"])
    classes = tuple(content.get("all_classes") or ())
    return Question(
        task=name,
        index=index,
        tokens=tuple(tokens),
        references=answers,
        max_new_tokens=row.max_new_tokens,
        score=partial(score, row, answers, classes),
        question_tokens=tail,
    )


def _fill(template: str, content: Mapping[str, Any]) -> tuple[str, str]:
    """The prompt, and the part of it after the context."""
    # in one pass: a context may hold "{input}" itself
    before, _, after = template.partition("{context}")
    before, after = (part.replace("{input}", content["input"]) for part in (before, after))
    return before + content["context"] + after, after


def _fit(tokenizer: Tokenizer, text: str, limit: int, bound: int, *, chat: bool) -> tuple[list[int], str]:
    """A prompt's tokens, and its text with so much of the middle left out that it keeps ``limit`` tokens at most.

    More is left out until the prompt, with the chat format, has ``bound`` tokens: decoding may give other tokens, so
    the length is looked at.

    Raises:
        QEvictError: the bound holds no text.
    """
    tokens = tokenizer.encode(text, add_bos=False)
    room = min(limit, len(tokens))
    while room > 0:
        kept = text if room == len(tokens) else tokenizer.decode(truncate_middle(tokens, room))
        whole = prompt_tokens(tokenizer, kept, chat=chat)
        if len(whole) <= bound:
            return whole, kept
        room -= len(whole) - bound
    raise QEvictError("a prompt has no room")
