# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the JSON body of a request: every parameter takes effect or is refused by name."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from qevict_jax.server.errors import ServerError

# What a label says changes no answer.
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")
# What is not supported, and the values that ask for nothing; null always does.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),  # about tools, of which there are none
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}


class Parameters:
    """The parameters of one request, read one by one with their types checked."""

    def __init__(self, body: bytes, known: Collection[str]):
        """Parses a body.

        Args:
            body: of the HTTP request.
            known: parameters that will be read.

        Raises:
            ServerError: 400 if it is not a JSON object, or asks for what is not supported.
        """
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ServerError(400, f"the body is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ServerError(400, "the body must be a JSON object")
        self._values: Mapping[str, Any] = {name: value for name, value in values.items() if value is not None}
        for name, value in self._values.items():
            if name in known or name in _LABELS:
                continue
            if name not in _NEUTRAL:
                said = shown(name)  # any text may be a name, also one that no UTF-8 can say
                raise ServerError(400, f"unknown parameter {said}", param=said.strip('"'), code="unknown_parameter")
            if not any(value == ok and isinstance(value, bool) == isinstance(ok, bool) for ok in _NEUTRAL[name]):
                raise ServerError(
                    400, f"{name}={shown(value)} is not supported", param=name, code="unsupported_parameter"
                )

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> Any:
        """The value as it is, or None."""
        return self._values.get(name)

    def boolean(self, name: str) -> bool:
        """True or false; false if it is not given."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise wrong(name, value, "true or false")
        return value

    def string(self, name: str) -> str:
        """A text that must be given."""
        if name not in self._values:
            raise ServerError(400, f"missing parameter {name!r}", param=name, code="missing_parameter")
        return text(name, self._values[name])

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """A number in a closed range."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise wrong(name, value, f"a number in {least:g} .. {most:g}")
        return float(value)

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """An integer in a closed range."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise wrong(name, value, f"an integer in {least} .. {most}")
        return value


def text(name: str, value: Any) -> str:
    """A value that must be a text; one that no UTF-8 can say is none."""
    if isinstance(value, str):
        try:
            value.encode()
            return value
        except UnicodeEncodeError:
            raise ServerError(400, f"{name} holds half of a surrogate pair", param=name) from None
    raise wrong(name, value, "a text")


def wrong(name: str, value: Any, expected: str) -> ServerError:
    """The error of a value that is not what it must be."""
    return ServerError(400, f"{name}={shown(value)} must be {expected}", param=name, code="invalid_value")


def shown(value: Any) -> str:
    """A value in an error message, cut short and in ASCII."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "(nested too deeply)"
    return text if len(text) <= 80 else f"{text[:77]}..."
