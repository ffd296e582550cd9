# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A policy's own parameters: ``"window=32,kernel=7"`` to the frozen record that the policy's module defines."""

from dataclasses import Field, dataclass, fields
from typing import Any, TypeVar

from qevict_jax.types import QEvictError

Options = TypeVar("Options")
_KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a word"}
_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class NoOptions:
    """The options of a policy that has none."""


def parse_options(policy: str, record: type[Options], text: str) -> Options:
    """`CacheConfig.policy_options` as the policy's record.

    Args:
        policy: name of the policy, for messages.
        record: its frozen dataclass; every field is an int, float, bool or str with a default.
        text: ``field=value`` with commas between them; empty for all defaults.

    Raises:
        QEvictError: an unknown or repeated field, or a bad value; the message names those there are.
    """
    known: dict[str, Field] = {field.name: field for field in fields(record)}  # type: ignore[arg-type]
    there = ", ".join(f"{name}={_shown(field.default)}" for name, field in known.items())
    works = f"there are {there}" if there else "it has none"
    given: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or name not in known:
            raise QEvictError(f"policy_options of {policy}: no option {word!r}; {works}")
        if name in given:
            raise QEvictError(f"policy_options of {policy}: {name} is given twice")
        given[name] = _value(policy, known[name], value)
    try:
        return record(**given)
    except QEvictError as error:
        raise QEvictError(f"policy_options of {policy}: {error}") from None


def _value(policy: str, field: Field, text: str) -> Any:
    kind: Any = field.type
    try:
        return _BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise QEvictError(f"policy_options of {policy}: {field.name}={text!r} must be {_KINDS[kind]}") from None


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
