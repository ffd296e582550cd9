# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Sweeps: ``field=value,value`` on the command line to one cache configuration per combination."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qevict_jax.cli.options import cache_config, field_kinds
from qevict_jax.config import CacheConfig
from qevict_jax.types import QEvictError


def sweep(settings: Mapping[str, Any], vary: Sequence[str]) -> list[tuple[str, Callable[[float], CacheConfig]]]:
    """All combinations of what varies.

    Args:
        settings: what all of them share, `cache_config`'s arguments.
        vary: ``field=value,value`` each; ``preset`` is a field here.

    Returns:
        A label and a function from budget to configuration, for each.

    Raises:
        QEvictError: an unknown field, or a value it cannot have.
    """
    axes = dict(map(_axis, vary))
    if len(axes) < len(vary):
        raise QEvictError(f"a field varies twice in {' '.join(vary)}")
    if fixed := [name for name in axes if name in settings and name != "preset"]:
        raise QEvictError(f"{', '.join(fixed)} cannot both vary and be given")
    rows = []
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        given = {**settings, **chosen}
        label = " ".join(f"{name}={value}" for name, value in chosen.items()) or str(given.get("preset", "tuned"))
        rows.append((label, lambda budget, given=given: cache_config(**given, budget=budget)))
        rows[-1][1](1.0)  # a bad value is better known now than after hours
    return rows


def numbers(text: str, kind: type, name: str) -> list[Any]:
    """``0.2,0.1`` as numbers."""
    return [_value(name, kind, part) for part in text.split(",")]


def _axis(text: str) -> tuple[str, list[Any]]:
    kinds = {name: kind for name, kind in field_kinds().items() if name not in ("budget", "budget_bytes")}
    name, sign, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if not sign or name not in kinds:
        raise QEvictError(f"--vary {text} must be FIELD=VALUE,VALUE... with one of {', '.join(kinds)}")
    return name, numbers(values, kinds[name], name)


def _value(name: str, kind: type, text: str) -> Any:
    try:
        return kind(text.strip())
    except ValueError:
        raise QEvictError(f"{name}={text.strip()!r} must be a number") from None
