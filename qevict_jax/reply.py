# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The answer of one row while it is drawn: tokens to text, up to an EOS token, a stop string or the row's limit."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from qevict_jax.engine import Drawn, Engine
from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.stop import StopWatch
from qevict_jax.types import QEvictError


class Reply:
    """What one row has answered so far.

    Attributes:
        tokens: drawn ids, up to the one that ended the answer.
        log_probs: their natural log-probabilities; empty if the engine does not keep them.
        has_stops: there are stop strings to look for.
        finish_reason: "stop" (an EOS token or a stop string), "length", or None while the answer goes on.
    """

    def __init__(self, tokenizer: Tokenizer | None, eos: Collection[int], stop: Sequence[str] = ()):
        """An empty answer.

        Args:
            tokenizer: that of the model; without one there is no text.
            eos: ids that end an answer and are no text.
            stop: texts that end it.

        Raises:
            QEvictError: stop strings without a tokenizer, or an empty one.
        """
        if any(not text for text in stop):
            raise QEvictError("an empty stop string would end every answer at once")
        if stop and tokenizer is None:
            raise QEvictError("this model has no tokenizer, so there is no text to look for stop strings in")
        self._tokenizer, self._eos, self._watch = tokenizer, eos, StopWatch(stop)
        self.has_stops = bool(stop)
        self._detokenizer = None if tokenizer is None else tokenizer.stream()
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.finish_reason: str | None = None

    def push(self, drawn: Drawn) -> str:
        """Takes what the row has drawn and returns the text that is now certain; what follows an end is dropped."""
        text = ""
        for index, token in enumerate(drawn.tokens):
            if self.finish_reason is not None:
                break
            self.tokens.append(token)
            if drawn.log_probs is not None:
                self.log_probs.append(drawn.log_probs[index])
            last = not drawn.active and index + 1 == len(drawn.tokens)
            text += self._read(token, last)
        return text

    def _read(self, token: int, last: bool) -> str:
        """The text of a token, and of what was held back if the answer ends with it."""
        ended = token in self._eos
        text = ""
        if self._detokenizer is not None:
            text = "" if ended else self._detokenizer.push(token)
            text = self._watch.push(text + self._detokenizer.flush() if last else text)
        if ended or self._watch.stopped:
            self.finish_reason = "stop"
        elif last:
            self.finish_reason = "length"
        return text if self.finish_reason is None else text + self._watch.flush()

    @property
    def text(self) -> str:
        """The answer, without special tokens and without the stop string."""
        if self._tokenizer is None:
            return ""
        ended = bool(self.tokens) and self.tokens[-1] in self._eos
        text = self._tokenizer.decode(self.tokens[:-1] if ended else self.tokens)
        return self._watch.cut(text) if self._watch.stopped else text


def decode(engine: Engine, replies: Mapping[int, Reply]) -> None:
    """Decodes until every reply is complete; without stop strings all at once.

    Args:
        engine: with rows in just these slots; they are released as they end.
        replies: one for each slot.
    """
    advance = engine.decode_block if any(reply.has_stops for reply in replies.values()) else engine.decode_all
    drawn = engine.drawn()
    while drawn:
        for slot, news in drawn.items():
            replies[slot].push(news)
            if replies[slot].finish_reason is not None:
                engine.release(slot)
        drawn = advance() if len(engine.free) < engine.slots else {}


def pieces(engine: Engine, reply: Reply) -> Iterator[str]:
    """Decodes slot 0 step by step and yields its text as it comes; the row stays in its slot."""
    drawn = engine.drawn()
    while True:
        if piece := reply.push(drawn[0]):
            yield piece
        if reply.finish_reason is not None:
            return
        drawn = engine.decode_step()
