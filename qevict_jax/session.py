# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A conversation on one compressed cache: a turn feeds only what is new, nothing is read twice."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from qevict_jax.config import CacheConfig
from qevict_jax.engine import Engine, Request, Spent
from qevict_jax.interrupts import interrupts_deferred
from qevict_jax.models import LanguageModel
from qevict_jax.reply import Reply, pieces
from qevict_jax.result import Result, make_result
from qevict_jax.sampling import Filters, Sampling
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
        self._model, self._tokenizer = model, model.tokenizer
        self._sampling, self._max_context = sampling or Sampling(), max_context
        self._engine = Engine(model, cache, slots=1, max_context=max_context, filters=Filters.of(self._sampling))
        self.plan = self._engine.plan
        self.messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self.result: Result | None = None
        self._cache: Any = None
        self._rendered = ""  # text up to where the last reply begins
        self._pending: list[int] = []  # ids that are part of the conversation but not of the cache yet

    @property
    def length(self) -> int:
        """Tokens of the conversation."""
        return len(self._pending) + (
            0 if self._cache is None else int(self._cache.length.ravel()[0])
        )  # on a mesh every device has it

    def send(self, text: str, *, max_new_tokens: int = 512, stop: Sequence[str] = ()) -> Iterator[str]:
        """Says something and yields the reply as it comes; `result` is there after the last piece.

        Stopping to listen, or Ctrl-C, ends the reply there; the conversation goes on from what was said.

        Raises:
            QEvictError: ``max_new_tokens`` is below 1, the conversation would outgrow ``max_context``, its template
                rewrites earlier turns, or the last reply still goes on.
        """
        if max_new_tokens < 1:
            raise QEvictError(f"max_new_tokens={max_new_tokens} must be at least 1")
        if not text.strip():
            raise QEvictError("an empty message has no answer")
        if not self._engine.free:
            raise QEvictError("the last reply still goes on; read it to its end or close it first")
        if self.messages and self.messages[-1]["role"] == "user":  # that turn was given up before its reply began
            self.messages.append({"role": "assistant", "content": ""})
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
        return self._reply(len(self.messages), min(max_new_tokens, room), stop)

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

    def _reply(self, turn: int, max_new_tokens: int, stop: Sequence[str]) -> Iterator[str]:
        if turn != len(self.messages):
            raise QEvictError("the conversation went on without this reply")
        engine = self._engine
        spent, ahead = engine.spent, self.length
        reply = Reply(self._tokenizer, engine.eos, stop)
        logits = self._take_in()
        try:
            with interrupts_deferred():
                engine.insert(engine.begin(logits, self._cache, [Request((), max_new_tokens, self._sampling)]), [0])
                self._cache = None
            yield from pieces(engine, reply)
        finally:
            if not engine.free:
                with interrupts_deferred():
                    self._end(stop, ahead, spent)

    def _end(self, stop: Sequence[str], prompt_tokens: int, before: Spent) -> None:
        """What a reply has said becomes a part of the conversation, and its row the cache of the next turn."""
        engine = self._engine
        # an interrupt may have lost the last token on its way to the reply that was read
        said = Reply(self._tokenizer, engine.eos, stop)
        said.push(engine.row(0))
        engine.finish_block()  # the next turn's chunks count from here
        self.result = make_result(engine, said, prompt_tokens=prompt_tokens, steps=len(said.tokens) - 1, before=before)
        self._pending = [] if said.tokens[-1] in engine.eos else [said.tokens[-1]]
        self._cache = engine.withdraw().state.cache
        # what the cache holds, a stop string included
        drawn = [token for token in said.tokens if token not in engine.eos]
        self.messages.append({"role": "assistant", "content": self._tokenizer.decode(drawn)})

    def _take_in(self) -> jax.Array:
        """Brings pending ids into the cache: the first turn at once, later ones in chunks, each with an event."""
        logits = None
        while self._pending:
            fresh = self._cache is None
            part = self._pending if fresh else self._pending[: self._engine.policy.event_steps]
            with interrupts_deferred():
                engine = self._engine
                logits, self._cache = engine.read([part]) if fresh else engine.feed(self._cache, [part])
                self._pending = self._pending[len(part) :]
        assert logits is not None
        return logits
