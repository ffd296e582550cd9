# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A conversation on one compressed cache: a turn feeds only what is new, nothing is read twice."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qevict_jax.config import CacheConfig
from qevict_jax.decoding import Compiled, Decoder
from qevict_jax.generate import Result, bucket, make_result
from qevict_jax.interrupts import interrupts_deferred
from qevict_jax.models import LanguageModel
from qevict_jax.policies import make_policy
from qevict_jax.sampling import Filters, Numbers, Sampling
from qevict_jax.stop import StopWatch
from qevict_jax.token_stream import TokenStream
from qevict_jax.types import QEvictError


class Session:
    """A chat with a model that has a chat template.

    Attributes:
        messages: the conversation so far.
        result: what the last turn gave, None before the first.
        plan: capacities and bytes of the cache.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        cache: CacheConfig | None = None,
        sampling: Sampling | None = None,
        max_context: int = 4096,
        system: str | None = None,
    ):
        """Opens a conversation.

        Args:
            model: from `load`.
            cache: how the KV cache is held; a ratio counts against a full cache of ``max_context`` tokens.
            sampling: how tokens are drawn, default greedy.
            max_context: tokens that the whole conversation may reach.
            system: a system message.

        Raises:
            QEvictError: no chat template, a context beyond the model's, or a budget too small.
        """
        if model.tokenizer is None or not model.tokenizer.has_chat_template:
            raise QEvictError("this model has no chat template, so it cannot chat; use generate")
        if not 1 <= max_context <= model.config.max_position:
            raise QEvictError(
                f"max_context={max_context} must lie in 1 .. {model.config.max_position}, the model's own"
            )
        self._model, self._tokenizer = model, model.tokenizer
        self._sampling, self._max_context = sampling or Sampling(), max_context
        self._policy = make_policy(model.config.kv_shape(), cache or CacheConfig(), max_context)
        self.plan = self._policy.plan
        self.messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self.result: Result | None = None
        self._cache: Any = None
        self._rendered = ""  # text up to where the last reply begins
        self._pending: list[int] = []  # ids that are part of the conversation but not of the cache yet

    @property
    def length(self) -> int:
        """Tokens of the conversation."""
        return len(self._pending) + (0 if self._cache is None else int(self._cache.length[0]))

    def send(self, text: str, *, max_new_tokens: int = 512, stop: Sequence[str] = ()) -> Iterator[str]:
        """Says something and yields the reply as it comes; `result` is there after the last piece.

        Stopping to listen, or Ctrl-C, ends the reply there; the conversation goes on from what was said.

        Raises:
            QEvictError: the conversation would outgrow ``max_context``, or its template rewrites earlier turns.
        """
        if not text.strip():
            raise QEvictError("an empty message has no answer")
        new_text, new_ids = self._next_turn(text)
        ahead = self.length + len(new_ids)
        room = self._max_context - ahead
        if room < 1:
            raise QEvictError(
                f"the conversation would be {ahead} tokens long and max_context={self._max_context} leaves no room for "
                f"an answer; start a new one, or give a larger max_context (the model goes up to "
                f"{self._model.config.max_position})"
            )
        self.messages.append({"role": "user", "content": text})
        self._rendered, self._pending = new_text, self._pending + new_ids
        return self._reply(min(max_new_tokens, room), stop)

    def _next_turn(self, text: str) -> tuple[str, list[int]]:
        """The conversation's text up to the next reply, and the ids that are new in it."""
        conversation = [*self.messages, {"role": "user", "content": text}]
        whole = self._tokenizer.render(conversation)
        if not self._rendered:
            return whole, self._tokenizer.encode(whole)
        rest = whole.removeprefix(self._rendered)
        reply = self.messages[-1]["content"]
        said = next((said for said in (reply, reply.strip()) if rest.startswith(said)), None)
        if rest == whole or said is None:
            raise QEvictError("the chat template of this model rewrites earlier turns, so its cache cannot be kept")
        return whole, self._tokenizer.encode(rest[len(said) :], add_bos=False)

    def _reply(self, max_new_tokens: int, stop: Sequence[str]) -> Iterator[str]:
        capacity = -(-max_new_tokens // 64) * 64
        eos = tuple(sorted(self._tokenizer.eos_ids))
        filters = Filters.of(self._sampling)
        compiled = Compiled(Decoder(self._model.program, self._policy, filters, eos, capacity))
        numbers, params = Numbers.of(self._sampling), self._model.params
        fed = self.length
        began = time.perf_counter()
        logits = self._take_in(compiled)
        with interrupts_deferred():
            limit = jnp.full((1,), max_new_tokens, jnp.int32)
            state = compiled("begin", params, self._cache, logits, jnp.ones((1,), bool), limit, numbers)
            self._cache = state.cache
        first = time.perf_counter() - began - compiled.seconds
        watch = StopWatch(stop)
        tokens = TokenStream(compiled, self._model, numbers, watch)
        tokens.state = state
        try:
            yield from tokens.pieces(state)
        finally:
            with interrupts_deferred():
                state = tokens.state
                last = int(state.last[0])
                self._pending = [] if last in eos else [last]
                if tokens.since_event:
                    state = compiled("event", params, state)  # the next turn's chunks count from here
                self._cache = state.cache
                self.result = make_result(
                    compiled,
                    self._model,
                    state,
                    0,
                    prompt_tokens=fed,
                    watch=watch,
                    time_to_first_token=first,
                    elapsed=tokens.elapsed,
                )
                # what the cache holds, a stop string included
                drawn = [token for token in self.result.tokens if token not in eos]
                self.messages.append({"role": "assistant", "content": self._tokenizer.decode(drawn)})

    def _take_in(self, compiled: Compiled) -> jax.Array:
        """Brings pending ids into the cache: the first turn at once, later ones in chunks, each with an event."""
        params = self._model.params
        if self._cache is None:
            padded = np.zeros((1, min(bucket(len(self._pending)), self._max_context)), np.int32)
            padded[0, : len(self._pending)] = self._pending
            length = jnp.asarray([len(self._pending)], jnp.int32)
            with interrupts_deferred():
                logits, self._cache = compiled("read", params, jnp.asarray(padded), length)
                self._pending = []
            return logits
        chunk = self._policy.event_steps
        logits = None
        while self._pending:
            part = self._pending[:chunk]
            padded = np.zeros((1, chunk), np.int32)
            padded[0, : len(part)] = part
            count = jnp.asarray([len(part)], jnp.int32)
            with interrupts_deferred():
                logits, self._cache = compiled("feed", params, self._cache, jnp.asarray(padded), count)
                self._pending = self._pending[len(part) :]
        assert logits is not None
        return logits
