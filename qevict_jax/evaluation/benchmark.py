# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A benchmark run: every cache answers every question, each finished pair is one line of the run."""

from collections.abc import Iterator, Sequence

from tqdm import tqdm

from qevict_jax.evaluation.answering import Answerer, Capacity, Question, capacity_of
from qevict_jax.evaluation.caches import Cache
from qevict_jax.evaluation.provenance import token_hash
from qevict_jax.evaluation.runs import Run
from qevict_jax.generate import Result
from qevict_jax.models import LanguageModel
from qevict_jax.types import QEvictError


def run_benchmark(
    run: Run,
    model: LanguageModel,
    questions: Sequence[Question],
    caches: Sequence[Cache],
    *,
    batch_size: int = 1,
    exact: bool = False,
    question_aware: bool = True,
    progress: bool = False,
) -> None:
    """Answers whatever the run does not hold yet.

    Batches are the same whatever is done already: a batch that was cut short is decoded again, and only its missing
    lines are written, so a continued run equals one that was never stopped.

    Args:
        run: where finished lines go.
        model: the model.
        questions: all of the run.
        caches: all of the run.
        batch_size: questions that are decoded together.
        exact: no padding of prompts; compiles once per length.
        question_aware: compress with the question in view, or before it is asked.
        progress: show a bar with the remaining time on stderr.

    Raises:
        QEvictError: a question does not fit the model or the protocol, or a cache its budget; nothing has run then.
    """
    answerer = Answerer(model, question_aware=question_aware)
    for question in questions:
        answerer.check(question)
    batches = list(make_batches(model, questions, batch_size, exact=exact))
    check_caches(answerer, {capacity for capacity, _ in batches}, caches)
    total = len(questions) * len(caches)
    done = sum((cache.label, q.task, q.index) in run.done for cache in caches for q in questions)
    with tqdm(total=total, initial=done, unit="answer", disable=not progress, smoothing=0.1) as bar:
        for capacity, batch in batches:
            missing = [(cache, [(cache.label, q.task, q.index) not in run.done for q in batch]) for cache in caches]
            missing = [(cache, wanted) for cache, wanted in missing if any(wanted)]
            if not missing:
                continue
            bar.set_description(f"{batch[0].task} {batch[0].index}")
            logits, record = answerer.read(batch, capacity)
            for cache, wanted in missing:
                policy = answerer.policy(cache.at(capacity.total), capacity)
                results = answerer.answer(batch, capacity, policy, logits, record)
                for question, result, new in zip(batch, results, wanted, strict=True):
                    if new:
                        run.append(answer_line(cache, question, result, capacity))
                        bar.update()


def make_batches(
    model: LanguageModel, questions: Sequence[Question], batch_size: int, *, exact: bool = False
) -> Iterator[tuple[Capacity, list[Question]]]:
    """Questions of one task and capacity together, in order.

    Raises:
        QEvictError: a question does not fit the model.
    """
    if batch_size < 1:
        raise QEvictError(f"batch_size={batch_size} must be at least 1")
    groups: dict[tuple, list[Question]] = {}
    for question in questions:
        capacity = capacity_of(model, question, exact=exact)
        groups.setdefault((question.task, capacity, question.stop), []).append(question)
    for (_, capacity, _), group in groups.items():
        for start in range(0, len(group), batch_size):
            yield capacity, group[start : start + batch_size]


def check_caches(answerer: Answerer, capacities: set[Capacity], caches: Sequence[Cache]) -> None:
    """Makes every policy once, so that a budget that is too small is known before hours of work.

    Raises:
        QEvictError: which cache does not fit, at what length, and the smallest budget that works.
    """
    for cache in caches:
        for capacity in sorted(capacities, key=lambda capacity: capacity.total):
            try:
                answerer.policy(cache.at(capacity.total), capacity)
            except QEvictError as error:
                raise QEvictError(f"{cache.label} at {capacity.total} tokens: {error}") from None


def answer_line(cache: Cache, question: Question, result: Result, capacity: Capacity) -> dict:
    """A finished line.

    ``kv_ratio`` is real bytes against a full cache of the same capacity, ``own_ratio`` against one of just this prompt
    and its longest answer, without padding; `report` shows both.
    """
    own = result.full_kv_bytes // capacity.total * (result.prompt_tokens + question.max_new_tokens)
    return {
        "cache": cache.label,
        "task": question.task,
        "index": question.index,
        "scores": dict(question.score(result.text)),
        "text": result.text,
        "references": list(question.references),
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason,
        "protocol": result.protocol,
        "question_tokens": result.question_tokens,
        "prompt_tokens": result.prompt_tokens,
        "prompt_sha256": token_hash(question.tokens),
        "kv_bytes": result.kv_bytes,
        "full_kv_bytes": result.full_kv_bytes,
        "kv_ratio": result.ratio_allocated,
        "own_ratio": result.kv_bytes / own,
    }
