# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The caches that a benchmark compares: ``"paper-ruler window=16"`` or ``"snapkv"``, at each of some budgets."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from qevict_jax.config import POLICY_FIELDS, PRESETS, CacheConfig
from qevict_jax.evaluation.requests import check_once
from qevict_jax.evaluation.sweep import setting_value
from qevict_jax.types import QEvictError

RECENT_SHARE = "recent_share"
# The paper's settings, by where they stand: Appendix E.1 (RULER), C.1 (LongBench), F.1 (GSM8K).
PAPER_PRESETS: dict[str, dict[str, Any]] = {
    "paper-ruler": {"recent": 64},
    "paper-longbench": {"recent": 128},
    "paper-gsm8k": {RECENT_SHARE: 0.25},
}


@dataclass(frozen=True)
class Cache:
    """One cache of a comparison.

    Attributes:
        name: how it was asked for, without its budget.
        config: its settings.
        recent_share: share of the budget that recent tokens get, instead of ``config.recent``; None for that.
    """

    name: str
    config: CacheConfig
    recent_share: float | None = None

    @property
    def label(self) -> str:
        """The name with the budget, one per cache of a run: ``"paper-ruler @ 0.2"``."""
        config = self.config
        if config.budget is not None:
            return f"{self.name} @ {config.budget:g}"
        return self.name if config.budget_bytes is None else f"{self.name} @ {config.budget_bytes} bytes"

    def at(self, total_len: int) -> CacheConfig:
        """The settings for sequences of at most ``total_len`` tokens."""
        if self.recent_share is None:
            return self.config
        if self.config.budget is None:
            raise QEvictError(f"{self.name}: {RECENT_SHARE} is a share of a budget given as a fraction")
        recent = int(self.recent_share * min(1.0, self.config.budget) * total_len)
        return replace(self.config, recent=max(1, recent))

    def record(self) -> dict[str, Any]:
        """What a run's configuration says about it."""
        return {"label": self.label, "name": self.name, RECENT_SHARE: self.recent_share, "config": asdict(self.config)}


def parse_caches(
    specs: Sequence[str], budgets: Sequence[float], *, full: bool = True, kv_dtype: str = "bfloat16"
) -> list[Cache]:
    """Every cache that was asked for, at every budget.

    Args:
        specs: each a preset or a policy, then ``field=value`` words; one that names its own budget, or whose policy
            reads none, stands once.
        budgets: fractions of the full cache.
        full: put the full cache first.
        kv_dtype: dtype of stored keys and values of all that do not name another.

    Raises:
        QEvictError: an unknown name or field, a bad value, a budget above the full cache, or a cache that is there
            twice.
    """
    specs = ["full", *(spec for spec in specs if spec.split() != ["full"])] if full else list(specs)
    caches = []
    for spec in specs:
        name, changes = _parse_spec(spec)
        open_budget = not {"budget", "budget_bytes"} & changes.keys() and "budget" in POLICY_FIELDS[_policy(name)]
        for budget in budgets if open_budget else [None]:
            stated = changes if budget is None else {**changes, "budget": budget}
            caches.append(_cache(" ".join(spec.split()), name, {"kv_dtype": kv_dtype, **stated}))
    check_once("the cache", [cache.label for cache in caches])
    if not caches:
        raise QEvictError("there is no cache to measure: name one, or leave the full cache in")
    return caches


def _policy(name: str) -> str:
    return name if name in POLICY_FIELDS else "qevict"


def _parse_spec(spec: str) -> tuple[str, dict[str, Any]]:
    name, *words = spec.split() or [""]
    known = [*PRESETS, *PAPER_PRESETS, *POLICY_FIELDS]
    if name not in known:
        raise QEvictError(f"cache {spec!r}: begin with a preset or a policy, one of {', '.join(known)}")
    names = [RECENT_SHARE, *(field.name for field in fields(CacheConfig) if field.name != "policy")]
    changes: dict[str, Any] = {}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals or field not in names:
            raise QEvictError(f"cache {spec!r}: write field=value with one of {', '.join(names)}, not {word!r}")
        if field in changes:
            raise QEvictError(f"cache {spec!r}: {field} is there twice")
        changes[field] = _share(value) if field == RECENT_SHARE else setting_value(field, value)
    return name, changes


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise QEvictError(f"{RECENT_SHARE}={text} must be a number between 0 and 1")
    return share


def _cache(text: str, name: str, changes: dict[str, Any]) -> Cache:
    recents = {"recent", RECENT_SHARE} & changes.keys()
    if len(recents) > 1:
        raise QEvictError(f"cache {text!r}: recent and {RECENT_SHARE} exclude each other")
    if not recents:
        changes = PAPER_PRESETS.get(name, {}) | changes
    share = changes.pop(RECENT_SHARE, None)
    if name in PAPER_PRESETS:
        config = CacheConfig.paper(**changes)
    elif name in PRESETS:
        config = PRESETS[name](**changes)
    else:
        config = CacheConfig(policy=name, **changes)
    if config.budget is not None and config.budget > 1:
        raise QEvictError(
            f"cache {text!r}: a budget of {config.budget:g} is {config.budget:.0%} of the full cache; give a fraction, "
            "at most 1: 0.2 is 20%"
        )
    if share is not None and "recent" not in POLICY_FIELDS[config.policy]:
        raise QEvictError(f"cache {text!r}: {RECENT_SHARE} has no effect, {config.policy} has no recent tokens to set")
    return Cache(text, config, share)
