# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Greedy answers of many caches to the same prompts: a prompt is read once, each cache admits it and decodes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from qevict_jax.config import CacheConfig
from qevict_jax.engine import Engine, Request, bucket
from qevict_jax.evaluation.prompt_record import PromptRecord, admit_record, recorder_for
from qevict_jax.mesh import DeviceMesh
from qevict_jax.models import LanguageModel
from qevict_jax.models.steps import Program, prefill
from qevict_jax.policies import Policy, make_policy
from qevict_jax.questions import AGNOSTIC, AWARE
from qevict_jax.reply import Reply, decode
from qevict_jax.result import Result, make_result
from qevict_jax.sampling import Filters, Sampling
from qevict_jax.sharded_programs import BATCH, PARAMS, Kind, Part, run_on_devices
from qevict_jax.types import QEvictError


@dataclass(frozen=True)
class Question:
    """One sample of a task, ready for a model.

    Attributes:
        task: name of the task, with the length if it has one.
        index: number of the sample in its task.
        tokens: the whole prompt, chat format and answer prefix included.
        references: what a right answer holds.
        max_new_tokens: the most tokens of an answer.
        score: from an answer's text to named scores, each in 0 .. 1.
        stop: texts that end an answer.
        prompt_capacity: tokens that the prompt is padded to; None for the bucket of its length.
        question_tokens: how many at the end of ``tokens`` come after the context that they ask about; 0 if there is no
            such context.
    """

    task: str
    index: int
    tokens: tuple[int, ...]
    references: tuple[str, ...]
    max_new_tokens: int
    score: Callable[[str], Mapping[str, float]]
    stop: tuple[str, ...] = ()
    prompt_capacity: int | None = None
    question_tokens: int = 0


@dataclass(frozen=True)
class Capacity:
    """Static sizes of a batch: padded prompt tokens and the most new tokens."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        """Tokens of the full cache that budgets count against."""
        return self.prompt + self.output


def capacity_of(model: LanguageModel, question: Question, *, exact: bool = False) -> Capacity:
    """The static sizes for one question.

    Args:
        model: its context is the limit.
        question: the sample.
        exact: no padding; then every new length compiles anew.

    Raises:
        QEvictError: the prompt and its answer are longer than the model's context.
    """
    length, output, context = len(question.tokens), question.max_new_tokens, model.config.max_position
    if length < 1 or length + output > context:
        raise QEvictError(
            f"{question.task} {question.index}: {length} prompt tokens and {output} new ones do not fit the model's "
            f"context of {context}"
        )
    padded = length if exact else question.prompt_capacity or min(bucket(length), context - output)
    return Capacity(padded, output)


class Answerer:
    """Answers batches of questions of one capacity; question-aware or not (`qevict_jax.questions`)."""

    def __init__(self, model: LanguageModel, *, question_aware: bool = True):
        if model.tokenizer is None:
            raise QEvictError("this model has no tokenizer, so it cannot answer in text")
        self._model, self._tokenizer, self._aware = model, model.tokenizer, question_aware

    @property
    def protocol(self) -> str:
        """How prompts with a question are compressed."""
        return AWARE if self._aware else AGNOSTIC

    def policy(self, config: CacheConfig, capacity: Capacity) -> Policy:
        """The policy of a cache at a capacity.

        Raises:
            QEvictError: the budget is too small.
        """
        return make_policy(self._model.config.kv_shape(), config, capacity.total, split=self._model.split)

    def read(self, questions: Sequence[Question], capacity: Capacity) -> tuple[Float[Array, "B V"], PromptRecord]:
        """Reads prompts, or their contexts; logits after each, and what every cache admits."""
        tokens = np.zeros((len(questions), capacity.prompt), np.int32)
        contexts = [self._parts(question)[0] for question in questions]
        for row, context in enumerate(contexts):
            tokens[row, : len(context)] = context
        lengths = np.array([*map(len, contexts)], np.int32)
        model = self._model
        return _read(model.program, model.mesh, model.dtype, model.params, tokens, lengths)

    def check(self, question: Question) -> None:
        """Whether a question suits the protocol.

        Raises:
            QEvictError: question-agnostic, and nothing stands before or after the context.
        """
        if not self._aware and not 0 < question.question_tokens < len(question.tokens):
            raise QEvictError(f"{question.task} {question.index} has no question after a context; use --question-aware")

    def _parts(self, question: Question) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What is compressed, and what is fed to the compressed cache."""
        cut = len(question.tokens) - (0 if self._aware else question.question_tokens)
        return question.tokens[:cut], question.tokens[cut:]

    def answer(
        self,
        questions: Sequence[Question],
        capacity: Capacity,
        policy: Policy,
        logits: Float[Array, "B V"],
        record: PromptRecord,
    ) -> list[Result]:
        """Greedy answers with one cache, which is that of ``policy``."""
        model, config = self._model, policy.plan.config
        greedy = Sampling()
        engine = Engine(
            model,
            config,
            slots=model.even(len(questions)),
            max_context=capacity.total,
            max_new_tokens=capacity.output,
            filters=Filters.of(greedy),
        )
        cache = _admit(model.program, model.mesh, policy, model.params, record)
        logits, cache = engine.extend(logits, cache, [self._parts(question)[1] for question in questions])
        requests = [Request(question.tokens, capacity.output, greedy, row) for row, question in enumerate(questions)]
        engine.insert(engine.begin(logits, cache, requests), range(len(questions)))
        replies = [Reply(self._tokenizer, engine.eos, question.stop) for question in questions]
        decode(engine, dict(enumerate(replies)))
        return [
            make_result(
                engine,
                reply,
                prompt_tokens=len(question.tokens),
                steps=max(len(other.tokens) for other in replies) - 1,
                protocol=self.protocol if question.question_tokens else None,
                question_tokens=question.question_tokens,
            )
            for reply, question in zip(replies, questions, strict=True)
        ]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _read(
    program: Program, mesh: DeviceMesh | None, dtype: str, params: nnx.State, tokens: Array, length: Array
) -> tuple[Float[Array, "B V"], PromptRecord]:
    recorder = recorder_for(program, dtype, tokens.shape[1])

    def read(params: nnx.State, tokens: Int[Array, "B S"], length: Int[Array, "B"]) -> tuple[Array, PromptRecord]:
        return prefill(program, params, recorder, tokens, length)

    if mesh is None:
        return read(params, tokens, length)
    record = Part(Kind.CACHE, recorder)
    return run_on_devices(mesh, read, (PARAMS, BATCH, BATCH), (BATCH, record), (params, tokens, length))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _admit(program: Program, mesh: DeviceMesh | None, policy: Policy, params: nnx.State, record: PromptRecord) -> Any:
    def admit(params: nnx.State, record: PromptRecord) -> Any:
        return admit_record(policy, record, program.transform(program.bind(params)))

    if mesh is None:
        return admit(params, record)
    recorder = recorder_for(program, str(record.q.dtype), record.tokens.shape[-2])
    return run_on_devices(
        mesh, admit, (PARAMS, Part(Kind.CACHE, recorder)), (Part(Kind.CACHE, policy),), (params, record)
    )
