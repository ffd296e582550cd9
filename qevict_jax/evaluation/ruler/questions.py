# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""RULER's samples as questions for a model: fitted to a length that counts the chat format and the answer."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from qevict_jax.evaluation.answering import Question
from qevict_jax.evaluation.prompting import prompt_tokens, question_tokens
from qevict_jax.evaluation.requests import check_once, check_tasks
from qevict_jax.evaluation.ruler.draft import Draft, Task, fitting_size, largest_size
from qevict_jax.evaluation.ruler.question_answering import QuestionAnswering
from qevict_jax.evaluation.ruler.sources import Readings
from qevict_jax.evaluation.ruler.tasks import TASKS, Sources, TaskRow
from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.types import QEvictError


def check_request(tasks: Sequence[str], lengths: Sequence[int], count: int, *, sources: Sources, context: int) -> None:
    """What can be said of a request without a tokenizer; arguments as of `make_questions`.

    Raises:
        QEvictError: an unknown task, one without its file, a task or length that is there twice, a length beyond the
            context, or no samples.
    """
    check_tasks("RULER", tasks, TASKS)
    check_once("the length", lengths)
    if count < 1:
        raise QEvictError(f"{count} samples must be at least 1")
    if max(lengths) > context:
        raise QEvictError(f"a length of {max(lengths)} tokens is beyond the model's context of {context}")
    for name in tasks:
        if not TASKS[name].ready(sources):
            raise QEvictError(f"{name} needs a file: {TASKS[name].file}")


def make_questions(
    tokenizer: Tokenizer,
    tasks: Sequence[str],
    lengths: Sequence[int],
    count: int,
    *,
    sources: Sources,
    context: int,
    chat: bool,
    seed: int = 42,
) -> list[Question]:
    """All samples of some tasks at some lengths.

    Args:
        tokenizer: lengths are counted with it.
        tasks: names of `TASKS`.
        lengths: tokens of prompt and answer together.
        count: samples of each task and length; 500 as published.
        sources: texts and questions.
        context: the model's, in tokens.
        chat: put the model's chat format around the task, with the beginning of the answer after it.
        seed: of all random choices; 42 as published.

    Raises:
        QEvictError: as `check_request`, or a length that is too short.
    """
    check_request(tasks, lengths, count, sources=sources, context=context)
    questions = []
    for length in lengths:
        for name in tasks:
            try:
                questions += _questions(tokenizer, name, length, count, sources, chat, seed)
            except QEvictError as error:
                raise QEvictError(f"{name} at {length} tokens: {error}") from None
    return questions


def _questions(
    tokenizer: Tokenizer, name: str, length: int, count: int, sources: Sources, chat: bool, seed: int
) -> Iterator[Question]:
    row = TASKS[name]
    limit = length - row.max_new_tokens
    encode = partial(_encode, tokenizer, chat)
    if row.make is not None:
        samples = _made(row.make, name, length, limit, count, sources, seed, encode)
    else:
        readings = row.readings(sources)
        assert readings is not None
        samples = _read(readings, name, limit, count, seed, encode)
    for index, draft in enumerate(samples):
        tokens = encode(draft)
        yield Question(
            task=f"{name}@{length}",
            index=index,
            tokens=tuple(tokens),
            question_tokens=question_tokens(tokenizer, tokens, draft.text, draft.question, chat=chat),
            references=draft.answers,
            max_new_tokens=row.max_new_tokens,
            score=partial(_score, row, draft.answers),
            prompt_capacity=limit,
        )


def _encode(tokenizer: Tokenizer, chat: bool, draft: Draft) -> list[int]:
    return prompt_tokens(tokenizer, draft.text, chat=chat, prefix=draft.prefix)


def _score(row: TaskRow, answers: Sequence[str], text: str) -> dict[str, float]:
    return {"score": row.score(text, answers)}


def _made(
    make: Callable[[Sources, int], Task],
    name: str,
    length: int,
    limit: int,
    count: int,
    sources: Sources,
    seed: int,
    encode: Callable[[Draft], list[int]],
) -> Iterator[Draft]:
    """Samples of a task that is made here: sized by the first, then each made shorter until it fits."""
    task = make(sources, length)

    def build(index: int, size: int) -> Draft:
        return task.build(random.Random(f"{seed} {name} {index}"), size)

    size = largest_size(lambda size: len(encode(build(0, size))), limit, task.most)
    if size == task.most:
        raise QEvictError("there are not enough different words for this length")
    for index in range(count):
        fitted = fitting_size(lambda size, index=index: len(encode(build(index, size))), size, limit)
        yield build(index, fitted)


def _read(
    readings: Readings, name: str, limit: int, count: int, seed: int, encode: Callable[[Draft], list[int]]
) -> Iterator[Draft]:
    """Samples of a task with questions from a file, in random order; those that do not fit are passed over."""
    order = list(range(len(readings.questions)))
    random.Random(f"{seed} {name}").shuffle(order)
    found = 0
    for index in order:
        task = QuestionAnswering(readings, readings.questions[index])

        def build(size: int, task=task, index=index) -> Draft:
            return task.build(random.Random(f"{seed} {name} {index}"), size)

        def tokens(size: int, build=build) -> int:
            return len(encode(build(size)))

        if tokens(0) > limit:
            continue
        yield build(largest_size(tokens, limit, task.most))
        found += 1
        if found == count:
            return
    raise QEvictError(f"{found} of {len(order)} questions of the file fit, {count} were asked for")
