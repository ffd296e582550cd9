# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What a user chooses about a cache: one frozen, hashable record, validated where it is made."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, no_type_check

from pallas_kernels.implementation import IMPLEMENTATIONS
from pallas_kernels.packing import BITS, WINDOWS
from qevict_jax.checks import check_integer, check_number, check_one_of
from qevict_jax.types import QEvictError

# What each policy reads of `CacheConfig` beside `SHARED_FIELDS`; a field that it does not read must keep its default.
SHARED_FIELDS = ("policy", "kv_dtype")
_EVICTION = ("budget", "budget_bytes", "policy_options")
POLICY_FIELDS = {
    "qevict": (
        *("budget", "budget_bytes", "window", "sink", "recent", "quant_fraction", "bits", "param_bits"),
        *("ranking", "prefill_scores", "prefill_pool", "residency", "accounting", "implementation"),
    ),
    "full": ("implementation",),
    "streaming_llm": _EVICTION,
    "h2o": _EVICTION,
    "snapkv": _EVICTION,
    "adakv": _EVICTION,
    "criticalkv": _EVICTION,
    "defensivekv": _EVICTION,
    "layer_defensivekv": _EVICTION,
    "kivi": ("policy_options",),
    "kvquant": ("policy_options",),
    "zipcache": ("policy_options",),
}
KV_DTYPES = ("bfloat16", "float16", "float32")
PARAM_BITS = (16, 8)
RANKINGS = ("cumulative", "decay", "p_norm", "key_norm")
RESIDENCIES = ("exact", "ranked")
ACCOUNTINGS = ("physical", "paper")

_LAST = re.compile(r"last:([1-9][0-9]*)")


@no_type_check  # values of a wrong type get our own message
@dataclass(frozen=True)
class CacheConfig:
    """How the KV cache is held. The default is `CacheConfig.tuned`.

    Attributes:
        policy: ``"qevict"`` (three tiers), ``"full"`` (every token in ``kv_dtype``) or another row of
            `qevict_jax.policies.POLICIES`. `POLICY_FIELDS` says which of the other settings it reads.
        policy_options: parameters of a policy other than these two, ``"window=32,kernel=7"``; its module defines them.
        budget: cache bytes as a fraction of the full cache at the same static capacity; must be positive.
        budget_bytes: bytes per sequence, instead of ``budget``; excludes it.
        kv_dtype: dtype in which full-precision keys and values are stored and charged.
        window: W, tokens in a window, and decode steps between routing events (Omega in the paper).
        sink: first tokens of a sequence, always kept in full precision.
        recent: newest tokens, always kept in full precision.
        quant_fraction: q of eq. 3, the share of the historical budget that goes to the quantized tier.
        bits: bits of a code in the quantized tier.
        param_bits: bits of a key scale or offset; 8-bit ones are decoded by four bfloat16 numbers per window and head.
        ranking: importance of a window, paper Appendix J.
        prefill_scores: start scores from the prompt: ``"all"`` sums over all prompt queries (the paper), ``"mean"``
            divides by the number of queries that see the key, ``"last:N"`` sums over the last N prompt queries.
        prefill_pool: neighbouring windows over which start scores are averaged, centred, so that what stands beside an
            attended window stays too (SnapKV's pooling, for windows); 1 is none (the paper).
        residency: ``"ranked"`` keeps exactly the best windows in full precision and promotes quantized ones (the
            paper); ``"exact"`` keeps a quantized window where it is, since its original values are gone.
        accounting: ``"physical"`` charges every byte that lives between steps; ``"paper"`` charges values, codes and
            parameters only, which reproduces the paper's capacities.
        implementation: form of attention: ``"auto"`` (the fused kernel on TPU and NVIDIA GPUs where it takes the shape,
            XLA elsewhere), ``"xla"``, ``"tpu"``, ``"gpu"``, or ``"interpret"`` (the TPU kernel interpreted, slow).
    """

    policy: str = "qevict"
    policy_options: str = ""
    budget: float | None = None
    budget_bytes: int | None = None
    kv_dtype: str = "bfloat16"
    window: int = 8
    sink: int = 5
    recent: int = 17
    quant_fraction: float = 1.0
    bits: int = 3
    param_bits: int = 8
    ranking: str = "cumulative"
    prefill_scores: str = "last:32"
    prefill_pool: int = 3
    residency: str = "exact"
    accounting: str = "physical"
    implementation: str = "auto"

    def __post_init__(self) -> None:
        check_one_of("policy", self.policy, tuple(POLICY_FIELDS))
        idle = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        idle = idle_fields(self.policy, idle)
        if idle:
            raise QEvictError(f"no effect with policy={self.policy!r}: {', '.join(idle)}")
        if self.budget is not None and self.budget_bytes is not None:
            raise QEvictError(f"budget={self.budget} and budget_bytes={self.budget_bytes} exclude each other; give one")
        if self.budget is None and self.budget_bytes is None and "budget" in POLICY_FIELDS[self.policy]:
            object.__setattr__(self, "budget", 0.2)
        if not isinstance(self.policy_options, str):
            raise QEvictError(f"policy_options={self.policy_options!r} must be a text like 'window=32,kernel=7'")
        check_one_of("kv_dtype", self.kv_dtype, KV_DTYPES)
        check_one_of("window", self.window, WINDOWS)
        check_one_of("bits", self.bits, BITS)
        check_one_of("param_bits", self.param_bits, PARAM_BITS)
        check_one_of("ranking", self.ranking, RANKINGS)
        check_one_of("residency", self.residency, RESIDENCIES)
        check_one_of("accounting", self.accounting, ACCOUNTINGS)
        check_one_of("implementation", self.implementation, IMPLEMENTATIONS)
        check_integer("sink", self.sink, 0)
        check_integer("recent", self.recent, 1)
        check_integer("prefill_pool", self.prefill_pool, 1)
        if self.budget is not None:
            check_number("budget", self.budget)
            if not 0 < self.budget < math.inf:
                raise QEvictError(f"budget={self.budget} must be a positive fraction of the full cache, e.g. 0.2")
        if self.budget_bytes is not None:
            check_integer("budget_bytes", self.budget_bytes, 1)
        check_number("quant_fraction", self.quant_fraction, 0, 1)
        if not isinstance(self.prefill_scores, str) or not (
            self.prefill_scores in ("all", "mean") or _LAST.fullmatch(self.prefill_scores)
        ):
            raise QEvictError(
                f"prefill_scores={self.prefill_scores!r} must be 'all', 'mean' or 'last:N' with N >= 1, e.g. 'last:32'"
            )

    @property
    def ring(self) -> int:
        """R: slots of the recent ring, a multiple of W that holds ``recent + 2W - 1`` tokens."""
        return self.window * -(-(self.recent + 2 * self.window - 1) // self.window)

    @property
    def last_queries(self) -> int | None:
        """N of ``prefill_scores="last:N"``, None for the other modes."""
        match = _LAST.fullmatch(self.prefill_scores)
        return int(match.group(1)) if match else None

    @classmethod
    def paper(cls, **changes: Any) -> "CacheConfig":
        """The configuration of the paper (Appendix B.5), for its tables."""
        preset = cls(
            window=8,
            sink=5,
            recent=32,
            quant_fraction=0.7,
            bits=2,
            param_bits=16,
            ranking="cumulative",
            prefill_scores="all",
            prefill_pool=1,
            residency="ranked",
        )
        return _changed(preset, changes)

    @classmethod
    def tuned(cls, **changes: Any) -> "CacheConfig":
        """The configuration that measured best in physical bytes (LOG.md); the same as ``CacheConfig()``."""
        return _changed(cls(), changes)

    @classmethod
    def full(cls, kv_dtype: str = "bfloat16") -> "CacheConfig":
        """The full cache: every token in ``kv_dtype``."""
        return cls(policy="full", kv_dtype=kv_dtype)


PRESETS = {"tuned": CacheConfig.tuned, "paper": CacheConfig.paper}


def _changed(preset: CacheConfig, changes: dict[str, Any]) -> CacheConfig:
    known = [field.name for field in fields(CacheConfig)]
    for name in changes:
        if name not in known:
            raise QEvictError(f"no cache setting {name!r}; there are {', '.join(known)}")
    policy = changes.get("policy", preset.policy)
    if changes.get("budget_bytes") is not None or (policy in POLICY_FIELDS and idle_fields(policy, ["budget"])):
        changes = {"budget": None, **changes}
    return replace(preset, **changes)


def fields_read(policy: str) -> tuple[str, ...]:
    """Names of the settings that a policy reads."""
    return (*SHARED_FIELDS, *POLICY_FIELDS[policy])


def idle_fields(policy: str, names: Iterable[str]) -> list[str]:
    """Those of some settings that a policy does not read."""
    return [name for name in names if name not in fields_read(policy)]
