# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Which configurations to compare: ``field=value,value`` words to every combination of them."""

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from qevict_jax.config import POLICY_FIELDS, PRESETS, CacheConfig, idle_fields
from qevict_jax.types import QEvictError

_KEPT = ("budget", "budget_bytes", "kv_dtype", "accounting")  # what a preset does not choose
_INTEGERS = ("window", "sink", "recent", "bits", "param_bits", "prefill_pool", "budget_bytes")
_NUMBERS = ("budget", "quant_fraction")


def parse_vary(vary: Sequence[str], base: CacheConfig) -> list[CacheConfig]:
    """Configurations of a sweep.

    Args:
        vary: words like ``"window=8,16"``; a field of `CacheConfig`, or ``"preset=tuned,paper"``. Semicolons stand
            between several ``policy_options``. A policy without a budget comes once, not once per budget.
        base: what is not varied. A preset replaces all of it but the budget, ``kv_dtype`` and ``accounting``.

    Returns:
        Every combination, the last word varying fastest, none twice.

    Raises:
        QEvictError: an unknown field or value; the message names those there are.
    """
    choices = dict(_parse_word(word) for word in vary)
    if len(choices) < len(vary):
        raise QEvictError(f"a field is varied twice in {' '.join(vary)}; give all its values in one word, window=8,16")
    configs = (
        _combine(base, dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())
    )
    return list(dict.fromkeys(configs))


def describe(config: CacheConfig) -> str:
    """A configuration without its budget: the nearest preset and what differs from it, ``"tuned window=16"``."""
    if config.policy == "full":
        return f"full {config.kv_dtype}"
    if config.policy != "qevict":
        return " ".join(filter(None, (config.policy, config.policy_options)))
    kept = {name: getattr(config, name) for name in _KEPT}

    def against(name: str) -> list[str]:
        preset = PRESETS[name](**kept)
        names = [field.name for field in fields(CacheConfig)]
        changed = [f"{key}={getattr(config, key)}" for key in names if getattr(config, key) != getattr(preset, key)]
        return [name, *changed]

    words = min((against(name) for name in PRESETS), key=len)
    if config.accounting != "physical":
        words.append(f"({config.accounting} accounting)")
    return " ".join(words)


def _parse_word(word: str) -> tuple[str, list[Any]]:
    name, equals, values = word.partition("=")
    known = ["preset", *(field.name for field in fields(CacheConfig))]
    if not equals or name not in known:
        raise QEvictError(f"cannot vary {word!r}: write field=value,value with one of the fields {', '.join(known)}")
    # options of a policy have commas of their own
    return name, [
        setting_value(name, value.strip()) for value in values.split(";" if name == "policy_options" else ",")
    ]


def setting_value(name: str, text: str) -> Any:
    """The value of a field of `CacheConfig`, or the name of a preset, from its text."""
    if name == "preset":
        if text not in PRESETS:
            raise QEvictError(f"preset={text!r} must be one of {', '.join(PRESETS)}")
        return text
    if name not in _INTEGERS + _NUMBERS:
        return text
    kind, noun = (int, "an integer") if name in _INTEGERS else (float, "a number")
    try:
        return kind(text)
    except ValueError:
        raise QEvictError(f"{name}={text!r} must be {noun}") from None


def _combine(base: CacheConfig, changes: dict[str, Any]) -> CacheConfig:
    preset = changes.pop("preset", None)
    if preset is not None:
        base = PRESETS[preset](**{name: getattr(base, name) for name in _KEPT})
    if "budget" in changes:
        changes = {"budget_bytes": None, **changes}
    elif "budget_bytes" in changes:
        changes = {"budget": None, **changes}
    policy = changes.get("policy", base.policy)
    if policy in POLICY_FIELDS and idle_fields(policy, ["budget"]):
        changes = {**changes, "budget": None, "budget_bytes": None}
    return replace(base, **changes)
