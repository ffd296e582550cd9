# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Text from prompts: `generate` for a batch, `stream` for one prompt as it comes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import jax
import numpy as np
from jaxtyping import Int8

from qevict_jax.config import CacheConfig
from qevict_jax.decode_state import Rows
from qevict_jax.engine import Engine, Request, bucket
from qevict_jax.models import LanguageModel
from qevict_jax.policies import Policy
from qevict_jax.questions import AGNOSTIC, AWARE, split_prompt
from qevict_jax.reply import Reply, decode, pieces
from qevict_jax.result import Result, make_result
from qevict_jax.sampling import Filters, Sampling
from qevict_jax.types import QEvictError

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]

_OUTPUT_BUCKET = 64


def generate(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    cache: CacheConfig | None = None,
    sampling: Sampling | None = None,
    max_new_tokens: int = 256,
    stop: Sequence[str] = (),
    log_probs: bool = False,
    buckets: bool = True,
    questions: Sequence[str] | None = None,
    question_aware: bool = True,
) -> list[Result]:
    """Generates from a batch of prompts of any lengths; each row has its own windows, tiers and end.

    Args:
        model: from `load`.
        prompts: each a text, a list of token ids, or a list of chat messages ``{"role": ..., "content": ...}``.
        cache: how the KV cache is held, default `CacheConfig.tuned`.
        sampling: how tokens are drawn, default greedy.
        max_new_tokens: the most tokens drawn per row.
        stop: texts that end a row.
        log_probs: also return log-probabilities.
        buckets: round prompt and output capacity up, so that other prompts of about that length compile nothing. The
            budget counts from the rounded capacity. False for exact lengths.
        questions: for each prompt a text that follows it; prompts are texts or messages then.
        question_aware: compress with the questions in view; False compresses the prompts alone and then feeds the
            questions to what is left.

    Raises:
        QEvictError: an empty prompt, one too long for the model, or a budget too small for the cache.
    """
    if not prompts:
        return []
    if isinstance(prompts, str):
        raise QEvictError("prompts must be a list; for one prompt give [prompt]")
    batch = _Batch(model, prompts, cache, sampling, max_new_tokens, log_probs, buckets, questions, question_aware)
    replies = {row: batch.reply(stop) for row in range(len(prompts))}
    batch.engine.insert(batch.prefill(), range(len(prompts)))
    decode(batch.engine, replies)
    return [batch.result(reply, row, list(replies.values())) for row, reply in replies.items()]


class _Batch:
    """The prompts of one call, and an engine that is as large as they need."""

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Prompt],
        cache: CacheConfig | None,
        sampling: Sampling | None,
        max_new_tokens: int,
        log_probs: bool,
        buckets: bool,
        questions: Sequence[str] | None,
        question_aware: bool,
    ):
        if max_new_tokens < 1:
            raise QEvictError(f"max_new_tokens={max_new_tokens} must be at least 1")
        self._model, sampling = model, sampling or Sampling()
        self.protocol = None if questions is None else AWARE if question_aware else AGNOSTIC
        self.questions = [0] * len(prompts)
        if questions is None:
            if not question_aware:
                raise QEvictError("question_aware=False has no effect without questions")
            self.ids = [encode_prompt(model, prompt, index) for index, prompt in enumerate(prompts)]
        else:
            if len(questions) != len(prompts):
                raise QEvictError(f"there are {len(questions)} questions for {len(prompts)} prompts; give one each")
            parts = [split_prompt(model, *pair, i) for i, pair in enumerate(zip(prompts, questions, strict=True))]
            self.ids = [context + question for context, question in parts]
            self.questions = [len(question) for _, question in parts]
        longest, context = max(map(len, self.ids)), model.config.max_position
        if longest + max_new_tokens > context:
            raise QEvictError(
                f"prompt {max(range(len(self.ids)), key=lambda i: len(self.ids[i]))} has {longest} tokens; with "
                f"max_new_tokens={max_new_tokens} that is over the model's context of {context} tokens; shorten the "
                f"prompt to {context - max_new_tokens} tokens"
            )
        self._size, capacity = longest, max_new_tokens
        if buckets:
            self._size, capacity = padded_sizes(longest, max_new_tokens, context)
        self.engine = Engine(
            model,
            cache,
            # beside some rows others may stay empty; one alone would leave a part of the mesh without any
            slots=model.even(len(self.ids)) if len(self.ids) > 1 else 1,
            max_context=self._size + capacity,
            max_new_tokens=capacity,
            filters=Filters.of(sampling),
            log_probs=log_probs,
        )
        self._before = self.engine.spent
        self._requests = [Request(ids, max_new_tokens, sampling, row) for row, ids in enumerate(self.ids)]

    def reply(self, stop: Sequence[str]) -> Reply:
        """An answer that has not begun."""
        return Reply(self._model.tokenizer, self.engine.eos, stop)

    def prefill(self) -> Rows:
        """Rows of all prompts; questions are read with them or fed to what is left of them."""
        self._before = self.engine.spent
        fed = self.questions if self.protocol == AGNOSTIC else [0] * len(self.ids)
        parts = [(ids[: len(ids) - count], ids[len(ids) - count :]) for ids, count in zip(self.ids, fed, strict=True)]
        logits, cache = self.engine.read([context for context, _ in parts], size=self._size)
        logits, cache = self.engine.extend(logits, cache, [question for _, question in parts])
        return self.engine.begin(logits, cache, self._requests)

    def result(self, reply: Reply, row: int, replies: Sequence[Reply]) -> Result:
        """The result of a row, one of ``replies``."""
        return make_result(
            self.engine,
            reply,
            prompt_tokens=len(self.ids[row]),
            steps=max(len(other.tokens) for other in replies) - 1,
            before=self._before,
            protocol=self.protocol,
            question_tokens=self.questions[row],
        )


class stream:
    """Generates from one prompt and yields text as it comes; `result` is there after the last piece.

    Takes the arguments of `generate` for one prompt. Uses the same decode step and routing event, one call each.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: Prompt,
        *,
        cache: CacheConfig | None = None,
        sampling: Sampling | None = None,
        max_new_tokens: int = 256,
        stop: Sequence[str] = (),
        log_probs: bool = False,
        buckets: bool = True,
        question: str | None = None,
        question_aware: bool = True,
    ):
        if model.tokenizer is None:
            raise QEvictError("this model has no tokenizer, so there is no text to stream")
        questions = None if question is None else [question]
        self._batch = _Batch(
            model, [prompt], cache, sampling, max_new_tokens, log_probs, buckets, questions, question_aware
        )
        self._stop = stop
        self._batch.reply(stop)  # complains now rather than at the first piece
        self.result: Result | None = None

    @property
    def policy(self) -> Policy:
        """The cache policy, with its plan."""
        return self._batch.engine.policy

    def placement(self) -> Int8[np.ndarray, "L heads S"]:
        """The `Tier` of every position, from the first piece on; heads is K, or 1 if the heads of a layer share it.

        Raises:
            QEvictError: before the first piece, or on a mesh, where each device has tiers of its own heads.
        """
        if self._batch.engine.compiled.decoder.mesh is not None:
            raise QEvictError("placement is that of one device, and this model is on a mesh")
        if self._batch.engine.free:
            raise QEvictError("nothing has been generated yet: the cache has no tiers before the first piece")
        return np.asarray(self._placement(self._batch.engine.cache))[:, 0]

    @cached_property
    def _placement(self) -> Callable:
        return jax.jit(self.policy.placement)

    def __iter__(self) -> Iterator[str]:
        batch, engine = self._batch, self._batch.engine
        if not engine.free:  # from the start once more
            engine.withdraw()
        reply = batch.reply(self._stop)
        engine.insert(batch.prefill(), [0])
        yield from pieces(engine, reply)
        self.result = batch.result(reply, 0, [reply])


def padded_sizes(longest: int, max_new_tokens: int, context: int) -> tuple[int, int]:
    """Prompt and output tokens that a batch is padded to; together within the model's context."""
    capacity = min(-(-max_new_tokens // _OUTPUT_BUCKET) * _OUTPUT_BUCKET, context - longest)
    return min(bucket(longest), context - capacity), capacity


def encode_prompt(model: LanguageModel, prompt: Prompt, index: int = 0) -> list[int]:
    """Token ids of a prompt of any form.

    Raises:
        QEvictError: it is empty, not a prompt, or holds ids that the model does not have.
    """
    if isinstance(prompt, str):
        if model.tokenizer is None:
            raise QEvictError("this model has no tokenizer; give token ids")
        ids = model.tokenizer.encode(prompt)
    elif len(prompt) and isinstance(prompt[0], Mapping):
        if model.tokenizer is None:
            raise QEvictError("this model has no tokenizer; give token ids")
        ids = model.tokenizer.chat(prompt)  # type: ignore[arg-type]
    else:
        ids = [int(token) for token in prompt]  # type: ignore[arg-type]
    if not ids:
        raise QEvictError(f"prompt {index} is empty: there is no token to continue from")
    wrong = next((token for token in ids if not 0 <= token < model.config.vocab), None)
    if wrong is not None:
        raise QEvictError(f"prompt {index} holds token id {wrong}; the model has ids 0 .. {model.config.vocab - 1}")
    return ids
