# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens of one row as they come, as text: the loop that `stream` and a chat session share."""

import time
from collections.abc import Iterator

import jax

from qevict_jax.decoding import Compiled, DecodeState
from qevict_jax.interrupts import interrupts_deferred
from qevict_jax.models import LanguageModel
from qevict_jax.sampling import Numbers
from qevict_jax.stop import StopWatch
from qevict_jax.types import QEvictError


class TokenStream:
    """Decodes a batch of one, step by step.

    Attributes:
        state: the newest state; whoever stops listening may go on from it.
        elapsed: seconds of decoding, compilation not included.
        since_event: decode steps since the last routing event.
    """

    state: DecodeState

    def __init__(self, compiled: Compiled, model: LanguageModel, numbers: Numbers, watch: StopWatch):
        if model.tokenizer is None:
            raise QEvictError("this model has no tokenizer, so there is no text to stream")
        self._compiled, self._params, self._numbers = compiled, model.params, numbers
        self._detokenizer, self._watch = model.tokenizer.stream(), watch
        self.elapsed, self.since_event = 0.0, 0

    def pieces(self, state: DecodeState) -> Iterator[str]:
        """Text of the first token, already drawn, and of every next one, until the row or a stop string ends it."""
        self.state = state
        while True:
            token, active = int(self.state.last[0]), bool(self.state.active[0])
            text = "" if token in self._compiled.decoder.eos else self._detokenizer.push(token)
            piece = self._watch.push(text if active else text + self._detokenizer.flush())
            ended = not active or self._watch.stopped
            if ended:
                piece += self._watch.flush()
            if piece:
                yield piece
            if ended:
                return
            self._step()

    def _step(self) -> None:
        began, before = time.perf_counter(), self._compiled.seconds
        with interrupts_deferred():
            state = self._compiled("token", self._params, self.state, self._numbers)
            self.since_event += 1
            if self.since_event == self._compiled.decoder.policy.event_steps:
                state, self.since_event = self._compiled("event", self._params, state), 0
            self.state = jax.block_until_ready(state)
        self.elapsed += time.perf_counter() - began - (self._compiled.seconds - before)
