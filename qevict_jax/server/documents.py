# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Answers as the JSON documents of OpenAI's API, whole or in chunks."""

import secrets
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Documents:
    """Builds the documents of one answer.

    Attributes:
        chat: a chat completion rather than a completion.
        model: name of the model.
        prompt_tokens: tokens of the prompt.
        include_usage: a stream ends with a chunk that counts tokens; ``usage`` is null in the others.
    """

    chat: bool
    model: str
    prompt_tokens: int
    include_usage: bool = False
    id: str = field(init=False)
    created: int = field(init=False)

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    def whole(self, text: str, reason: str, tokens: int) -> dict[str, Any]:
        """The document of an answer that did not stream."""
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return self._document("chat.completion", [self._choice(said, reason)], usage=self._usage(tokens))

    def first(self) -> list[dict[str, Any]]:
        """What a stream begins with."""
        return [self._chunk({"role": "assistant", "content": ""}, "", None)] if self.chat else []

    def piece(self, text: str) -> dict[str, Any]:
        """The chunk of some text."""
        return self._chunk({"content": text}, text, None)

    def last(self, reason: str, tokens: int) -> list[dict[str, Any]]:
        """The chunks that end a stream."""
        end = [self._chunk({}, "", reason)]
        if self.include_usage:
            end.append(self._document("chat.completion.chunk", [], usage=self._usage(tokens)))
        return end

    def _chunk(self, delta: dict[str, str], text: str, reason: str | None) -> dict[str, Any]:
        said = {"delta": delta} if self.chat else {"text": text}
        usage = {"usage": None} if self.include_usage else {}
        return self._document("chat.completion.chunk", [self._choice(said, reason)], **usage)

    def _choice(self, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": 0, **said, "logprobs": None, "finish_reason": reason}

    def _document(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }

    def _usage(self, tokens: int) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens + tokens,
        }
