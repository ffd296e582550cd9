# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""From the body of a completion or a chat completion to a request for the engine.

Parameters: https://platform.openai.com/docs/api-reference; ``top_k`` and ``min_p`` beside them, as other servers have
them. Where the API names a default (temperature 1, 16 tokens of a completion) it is ours.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qevict_jax.engine import Request
from qevict_jax.models import LanguageModel
from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.sampling import Sampling
from qevict_jax.server.errors import ServerError
from qevict_jax.server.parameters import Parameters, shown, text, wrong
from qevict_jax.types import QEvictError

_SHARED = {"model", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stream", "stream_options", "max_tokens"}
_COMPLETION = _SHARED | {"prompt"}
_CHAT = _SHARED | {"messages", "max_completion_tokens"}
_DEFAULT_COMPLETION_TOKENS = 16
_MOST_STOPS = 4
_ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class Asked:
    """What a client asked for.

    Attributes:
        request: for the engine.
        stop: texts that end the answer.
        stream: pieces as they come.
        include_usage: count tokens at the end of a stream.
    """

    request: Request
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool


@dataclass(frozen=True)
class Reader:
    """Reads bodies for one model.

    Attributes:
        model: with a tokenizer.
        name: under which it is served.
        max_context: tokens of prompt and answer.
        max_new_tokens: the most tokens of an answer.
    """

    model: LanguageModel
    name: str
    max_context: int
    max_new_tokens: int

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        assert self.model.tokenizer is not None
        return self.model.tokenizer

    def completion(self, body: bytes) -> Asked:
        """The body of ``/v1/completions``.

        Raises:
            ServerError: 400, or 404 if it names another model.
        """
        parameters = Parameters(body, _COMPLETION)
        self._check_model(parameters)
        ids = self._prompt(parameters.get("prompt"))
        default = min(_DEFAULT_COMPLETION_TOKENS, self.max_new_tokens)
        return self._asked(parameters, "prompt", ids, "max_tokens", default)

    def chat(self, body: bytes) -> Asked:
        """The body of ``/v1/chat/completions``; an answer may take all of the context that is left.

        Raises:
            ServerError: as `completion`.
        """
        parameters = Parameters(body, _CHAT)
        self._check_model(parameters)
        ids = self._encoded("messages", lambda: self.tokenizer.chat(_messages(parameters.get("messages"))))
        if "max_tokens" in parameters and "max_completion_tokens" in parameters:
            raise ServerError(400, "give max_completion_tokens or max_tokens, not both", param="max_tokens")
        name = "max_tokens" if "max_tokens" in parameters else "max_completion_tokens"
        default = max(1, min(self.max_new_tokens, self.max_context - len(ids)))
        return self._asked(parameters, "messages", ids, name, default)

    def _asked(self, parameters: Parameters, prompt: str, ids: list[int], limit: str, default: int) -> Asked:
        most = parameters.integer(limit, default, 1, self.max_new_tokens)
        if len(ids) + most > self.max_context:
            raise ServerError(
                400,
                f"the prompt has {len(ids)} tokens; with {most} for the answer that is over the context of "
                f"{self.max_context} tokens",
                param=prompt,
                code="context_length_exceeded",
            )
        stream, options = parameters.boolean("stream"), parameters.get("stream_options")
        if options is not None and (not stream or not isinstance(options, dict) or options.keys() - {"include_usage"}):
            raise wrong("stream_options", options, '{"include_usage": true or false}, and only beside stream=true')
        include = (options or {}).get("include_usage", False)
        if not isinstance(include, bool):
            raise wrong("stream_options.include_usage", include, "true or false")
        return Asked(Request(tuple(ids), most, _sampling(parameters)), _stop(parameters.get("stop")), stream, include)

    def _check_model(self, parameters: Parameters) -> None:
        name = parameters.string("model")
        if name != self.name:
            message = f"there is no model {shown(name)}; this server has {shown(self.name)}"
            raise ServerError(404, message, param="model", code="model_not_found")

    def _prompt(self, prompt: Any) -> list[int]:
        """A text or token ids; a list of just one of these is the same."""
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > 1:
                raise ServerError(400, "several prompts in one request are not supported", param="prompt")
            (prompt,) = prompt
        if isinstance(prompt, str):
            return self._encoded("prompt", lambda: self.tokenizer.encode(text("prompt", prompt)))
        if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
            raise ServerError(400, "prompt must be a text or a list of token ids", param="prompt")
        vocab = self.model.config.vocab
        foreign = next((token for token in prompt if not 0 <= token < vocab), None)
        if foreign is not None:
            raise wrong("prompt", foreign, f"made of token ids in 0 .. {vocab - 1}")
        return self._encoded("prompt", lambda: prompt)

    def _encoded(self, param: str, encode: Callable[[], list[int]]) -> list[int]:
        try:
            ids = encode()
        except QEvictError as error:
            raise ServerError(400, str(error), param=param) from None
        if not ids:
            raise ServerError(400, f"{param} is empty: there is no token to continue from", param=param)
        return ids


def _messages(messages: Any) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise ServerError(400, "messages must be a list of at least one message", param="messages")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _message(name: str, message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise wrong(name, message, 'an object like {"role": "user", "content": "..."}')
    more = [key for key, value in message.items() if key not in ("role", "content") and value is not None]
    if more:
        raise ServerError(400, f"{name}: {shown(more[0])} is not supported", param=name, code="unsupported_parameter")
    if message.get("role") not in _ROLES:
        raise wrong(f"{name}.role", message.get("role"), f"one of {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text_part(f"{name}.content[{index}]", part) for index, part in enumerate(content))
    return {"role": message["role"], "content": text(f"{name}.content", content)}


def _text_part(name: str, part: Any) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        raise wrong(name, part, 'a text part, {"type": "text", "text": "..."}')
    return text(f"{name}.text", part.get("text"))


def _sampling(parameters: Parameters) -> Sampling:
    seed = parameters.integer("seed", secrets.randbits(32), -(2**63), 2**63 - 1)
    try:
        return Sampling(
            temperature=parameters.number("temperature", 1.0, 0.0, 2.0),
            top_k=parameters.integer("top_k", 0, 0, 2**31 - 1),
            top_p=parameters.number("top_p", 1.0, 0.0, 1.0),
            min_p=parameters.number("min_p", 0.0, 0.0, 1.0),
            seed=seed % 2**32,
        )
    except QEvictError as error:
        raise ServerError(400, str(error), code="invalid_value") from None


def _stop(stop: Any) -> tuple[str, ...]:
    given = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(given, list) or len(given) > _MOST_STOPS:
        raise wrong("stop", stop, f"a text or a list of up to {_MOST_STOPS}")
    stops = tuple(text("stop", one) for one in given)
    if not all(stops):
        raise wrong("stop", stop, "without empty texts")
    return stops
