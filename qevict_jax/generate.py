# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Text from prompts: `generate` for a batch, `stream` for one prompt as it comes."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int8

from qevict_jax.cache import nbytes
from qevict_jax.config import CacheConfig
from qevict_jax.decoding import Compiled, Decoder, DecodeState
from qevict_jax.models import LanguageModel
from qevict_jax.policies import Policy, make_policy
from qevict_jax.questions import AGNOSTIC, AWARE, split_prompt
from qevict_jax.sampling import Filters, Numbers, Sampling
from qevict_jax.stop import StopWatch
from qevict_jax.token_stream import TokenStream
from qevict_jax.types import QEvictError

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]

_MIN_BUCKET = 64
_OUTPUT_BUCKET = 64


@dataclass(frozen=True)
class Result:
    """What one prompt gave.

    Attributes:
        text: the answer, without special tokens and without the stop string.
        tokens: drawn token ids, the one that ended the row included.
        log_probs: natural log-probability of each of them under the model, if asked for.
        finish_reason: "stop" (an EOS token or a stop string) or "length".
        prompt_tokens: tokens of the prompt.
        kv_bytes: bytes of the real cache arrays, per row of the batch.
        full_kv_bytes: bytes of a full cache of the same static capacity and dtype.
        ratio_allocated: ``kv_bytes / full_kv_bytes``, never above the budget.
        ratio_own: ``kv_bytes`` against a full cache of just this row's tokens.
        time_to_first_token: seconds of prefill and first draw, compilation not included.
        time_per_token: seconds of a decode step of the batch, compilation not included.
        compile_time: seconds spent compiling.
        protocol: "question-aware" or "question-agnostic" (`qevict_jax.questions`), None without a question.
        question_tokens: tokens of the prompt that are the question.
    """

    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...] | None
    finish_reason: str
    prompt_tokens: int
    kv_bytes: int
    full_kv_bytes: int
    ratio_allocated: float
    ratio_own: float
    time_to_first_token: float
    time_per_token: float
    compile_time: float
    protocol: str | None = None
    question_tokens: int = 0


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
    run = _Run(model, prompts, cache, sampling, max_new_tokens, log_probs, buckets, stop, questions, question_aware)
    state = run.start()
    began = time.perf_counter()
    before = run.compiled.seconds
    watches = [StopWatch(stop) for _ in prompts]
    if stop:
        streams = [run.tokenizer.stream() for _ in prompts]
        seen = [0] * len(prompts)
        state = stop_rows(state, watches, streams, seen, run.eos)
        while bool(state.active.any()):
            state = run.call("block", state, run.numbers)
            state = stop_rows(state, watches, streams, seen, run.eos)
    else:
        state = run.call("run", state, run.numbers)
    state = jax.block_until_ready(state)
    elapsed = time.perf_counter() - began - (run.compiled.seconds - before)
    return run.results(state, elapsed, watches if stop else None)


def stop_rows(state: DecodeState, watches: list, streams: list, seen: list, eos: frozenset) -> DecodeState:
    """Shows new tokens to the stop watches; rows that met a stop string end at the token that completed it."""
    counts, tokens = np.asarray(state.count), np.asarray(state.tokens)
    active, ends = np.array(state.active), counts.copy()
    for row, watch in enumerate(watches):
        for at in range(seen[row], counts[row]):
            token = int(tokens[row, at])
            watch.push("" if token in eos else streams[row].push(token))
            if watch.stopped:
                active[row], ends[row] = False, at + 1
                break
        seen[row] = int(ends[row])
    return replace(state, active=jnp.asarray(active), count=jnp.asarray(ends))


class _Run:
    """One call: tokens, static capacity, policy and programs."""

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Prompt],
        cache: CacheConfig | None,
        sampling: Sampling | None,
        max_new_tokens: int,
        log_probs: bool,
        buckets: bool,
        stop: Sequence[str] = (),
        questions: Sequence[str] | None = None,
        question_aware: bool = True,
    ):
        if max_new_tokens < 1:
            raise QEvictError(f"max_new_tokens={max_new_tokens} must be at least 1")
        if any(not text for text in stop):
            raise QEvictError("an empty stop string would end every answer at once")
        self.model, self.sampling = model, sampling or Sampling()
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
        size, capacity = longest, max_new_tokens
        if buckets:
            size, capacity = padded_sizes(longest, max_new_tokens, context)
        shape = model.config.kv_shape()
        self.policy = make_policy(shape, cache or CacheConfig(), size + capacity)
        self.eos = frozenset() if model.tokenizer is None else model.tokenizer.eos_ids
        decoder = Decoder(
            model.program, self.policy, Filters.of(self.sampling), tuple(sorted(self.eos)), capacity, log_probs
        )
        self.compiled = Compiled(decoder)
        self.numbers = Numbers.batch([self.sampling] * len(self.ids), range(len(self.ids)))
        self.prompts = np.zeros((len(self.ids), size), np.int32)
        for row, ids in enumerate(self.ids):
            self.prompts[row, : len(ids)] = ids
        self.limit = np.full(len(self.ids), max_new_tokens, np.int32)
        self.time_to_first_token = 0.0

    @property
    def tokenizer(self):
        if self.model.tokenizer is None:
            raise QEvictError("this model has no tokenizer, so there is no text to look for stop strings in")
        return self.model.tokenizer

    def call(self, name: str, *args):
        """A program of the decoder on the model's parameters."""
        return self.compiled(name, self.model.params, *args)

    def start(self) -> DecodeState:
        """Prefill and first token."""
        fed = np.asarray(self.questions if self.protocol == AGNOSTIC else [0] * len(self.ids), np.int32)
        lengths = np.asarray([len(ids) for ids in self.ids], np.int32) - fed
        prompts = np.where(np.arange(self.prompts.shape[1]) < lengths[:, None], self.prompts, 0)
        prompts, lengths, limit = (jnp.asarray(x) for x in (prompts, lengths, self.limit))
        began, before = time.perf_counter(), self.compiled.seconds
        logits, cache = self.call("read", prompts, lengths)
        logits, cache = self._feed(logits, cache, np.asarray(lengths), fed)
        state = self.call("begin", cache, logits, lengths > 0, limit, self.numbers)
        state = jax.block_until_ready(state)
        self.time_to_first_token = time.perf_counter() - began - (self.compiled.seconds - before)
        return state

    def _feed(self, logits: jax.Array, cache: Any, start: np.ndarray, count: np.ndarray) -> tuple[jax.Array, Any]:
        """Feeds ``count`` ids of each row, from ``start`` on, to the compressed cache, in chunks with an event each."""
        chunk = self.policy.event_steps
        for done in range(0, int(count.max()), chunk):
            counts = np.clip(count - done, 0, chunk).astype(np.int32)
            columns = np.minimum(start[:, None] + done + np.arange(chunk), self.prompts.shape[1] - 1)
            tokens = jnp.asarray(np.take_along_axis(self.prompts, columns, axis=1))
            made, cache = self.call("feed", cache, tokens, jnp.asarray(counts))
            logits = jnp.where(jnp.asarray(counts)[:, None] > 0, made, logits)
        return logits, cache

    def results(self, state: DecodeState, elapsed: float, watches: list[StopWatch] | None = None) -> list[Result]:
        """Results of all rows, bytes taken from the real arrays."""
        return [self.result(state, row, elapsed, watches) for row in range(len(self.ids))]

    def result(self, state: DecodeState, row: int, elapsed: float, watches: list[StopWatch] | None = None) -> Result:
        """The result of one row after ``elapsed`` seconds of decoding."""
        result = make_result(
            self.compiled,
            self.model,
            state,
            row,
            prompt_tokens=len(self.ids[row]),
            watch=None if watches is None else watches[row],
            time_to_first_token=self.time_to_first_token,
            elapsed=elapsed,
        )
        return replace(result, protocol=self.protocol, question_tokens=self.questions[row])


def make_result(
    compiled: Compiled,
    model: LanguageModel,
    state: DecodeState,
    row: int,
    *,
    prompt_tokens: int,
    watch: StopWatch | None,
    time_to_first_token: float,
    elapsed: float,
) -> Result:
    """A row's result; bytes are those of the real arrays."""
    decoder = compiled.decoder
    counts = np.asarray(state.count)  # whole arrays to the host: slicing on the device would compile per length
    count = counts[row]
    tokens = tuple(int(x) for x in np.asarray(state.tokens)[row, :count])
    ended = bool(tokens) and tokens[-1] in decoder.eos
    text = "" if model.tokenizer is None else model.tokenizer.decode(tokens[:-1] if ended else tokens)
    stopped = watch is not None and watch.stopped
    kv_bytes = nbytes(state.cache) // len(counts)
    plan = decoder.policy.plan
    own = int(np.asarray(state.cache.length)[row]) * (plan.full_kv_bytes // plan.total_len)
    log_probs = None if state.log_probs is None else np.asarray(state.log_probs)[row, :count]
    return Result(
        text=watch.cut(text) if watch is not None and stopped else text,
        tokens=tokens,
        log_probs=None if log_probs is None else tuple(float(x) for x in log_probs),
        finish_reason="stop" if ended or stopped else "length",
        prompt_tokens=prompt_tokens,
        kv_bytes=kv_bytes,
        full_kv_bytes=plan.full_kv_bytes,
        ratio_allocated=kv_bytes / plan.full_kv_bytes,
        ratio_own=kv_bytes / own,
        time_to_first_token=time_to_first_token,
        time_per_token=elapsed / max(1, int(counts.max()) - 1),
        compile_time=compiled.seconds,
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
        questions = None if question is None else [question]
        self._run = _Run(
            model, [prompt], cache, sampling, max_new_tokens, log_probs, buckets, stop, questions, question_aware
        )
        self._watch = StopWatch(stop)
        self._tokens: TokenStream | None = None
        self.result: Result | None = None

    @property
    def policy(self) -> Policy:
        """The cache policy, with its plan."""
        return self._run.policy

    def placement(self) -> Int8[np.ndarray, "L heads S"]:
        """The `Tier` of every position, from the first piece on; heads is K, or 1 if the heads of a layer share it.

        Raises:
            QEvictError: before the first piece.
        """
        if self._tokens is None:
            raise QEvictError("nothing has been generated yet: the cache has no tiers before the first piece")
        return np.asarray(self._placement(self._tokens.state.cache))[:, 0]

    @cached_property
    def _placement(self) -> Callable:
        return jax.jit(self.policy.placement)

    def __iter__(self) -> Iterator[str]:
        run = self._run
        self._tokens = tokens = TokenStream(run.compiled, run.model, run.numbers, self._watch)
        yield from tokens.pieces(run.start())
        self.result = run.result(tokens.state, 0, tokens.elapsed, [self._watch])


def padded_sizes(longest: int, max_new_tokens: int, context: int) -> tuple[int, int]:
    """Prompt and output tokens that a batch is padded to; together within the model's context."""
    capacity = min(-(-max_new_tokens // _OUTPUT_BUCKET) * _OUTPUT_BUCKET, context - longest)
    return min(bucket(longest), context - capacity), capacity


def bucket(length: int) -> int:
    """The padded size of a prompt: at most an eighth more, eight sizes per octave, 64 at least."""
    step = max(_MIN_BUCKET, 1 << max(0, (length - 1).bit_length() - 4))
    return -(-length // step) * step


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
