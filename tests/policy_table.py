# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The one table of cache configurations that every law is tested on: a new policy or option is one more row."""

from dataclasses import dataclass

from qevict_jax.config import CacheConfig
from tests.kvquant_calibration import OUTLIERS, calibration_file
from tests.random_model import CONFIGS


@dataclass(frozen=True)
class PolicyCase:
    """A configuration at a tiny size.

    Attributes:
        config: the cache, sized so that full slots, code slots and evictions all occur where they can.
        model: a row of `tests.random_model.CONFIGS`.
        prompt: static prompt size.
        events: routing events that a recording goes through.
    """

    config: CacheConfig
    model: str = "plain"
    prompt: int = 64
    events: int = 4

    @property
    def total_len(self) -> int:
        """Static capacity."""
        return self.prompt + self.events * max(8, self.config.window)


def _case(changes: dict, **case) -> PolicyCase:
    """The tuned preset with windows small enough for prompts of 60 tokens."""
    small = {"window": 4, "sink": 3, "recent": 5, "kv_dtype": "float32", "budget": 0.24, "prefill_scores": "last:8"}
    return PolicyCase(CacheConfig.tuned(**(small | changes)), **case)


def _paper(changes: dict, **case) -> PolicyCase:
    small = {"sink": 3, "recent": 5, "kv_dtype": "float32", "budget": 0.34}
    return PolicyCase(CacheConfig.paper(**(small | changes)), **case)


TOKEN_METHODS = ("h2o", "snapkv", "adakv", "criticalkv", "defensivekv", "layer_defensivekv")


def _eviction(policy: str, options: str, budget: float, **case) -> PolicyCase:
    """Token-level eviction, with a window small enough for prompts of 60 tokens."""
    config = CacheConfig(policy=policy, policy_options=options, budget=budget, kv_dtype="float32")
    return PolicyCase(config, **({"events": 3} | case))


def _coded(policy: str, options: str, kv_dtype: str = "float32", model: str = "plain", **case) -> PolicyCase:
    """Every token kept as codes: the operating point decides the bytes."""
    if policy == "kvquant":
        options = f"{options},outliers={OUTLIERS},calibration={calibration_file(CONFIGS[model])}"
    config = CacheConfig(policy=policy, policy_options=options, kv_dtype=kv_dtype)
    return PolicyCase(config, model, **({"events": 3} | case))


WINDOW = "window=6,kernel=3"
RANKED = {"residency": "ranked", "quant_fraction": 0.3}
HALF = {"quant_fraction": 0.5, "budget": 0.3}

CASES: dict[str, PolicyCase] = {
    "full": PolicyCase(CacheConfig.full("float32")),
    "full_bfloat16": PolicyCase(CacheConfig.full("bfloat16"), events=2),
    "paper": _paper({"budget": 0.27}, prompt=200, events=3),
    "paper_w4_mean": _paper({"window": 4, "prefill_scores": "mean", "quant_fraction": 0.5}, events=6),
    "paper_bias": _paper(
        {"window": 4, "prefill_scores": "last:8", "budget": 0.32, "quant_fraction": 0.4}, model="bias", events=6
    ),
    "tuned": _case({}),
    "tuned_w8": _case({"window": 8, "budget": 0.35}),
    "two_tiers": _case({"quant_fraction": 0.0, "budget": 0.4}),
    "exact": _case(HALF | {"quant_fraction": 0.3, "bits": 2, "prefill_pool": 1}, events=6),
    "exact_q09_bias": _case({"quant_fraction": 0.9, "budget": 0.3, "bits": 4}, model="bias", prompt=160),
    "exact_bfloat16": _case(HALF | {"kv_dtype": "bfloat16", "budget": 0.4, "param_bits": 16}),
    "exact_float16": _case(HALF | {"kv_dtype": "float16", "budget": 0.44, "prefill_scores": "all"}),
    "ranked_int4": _case(RANKED | {"bits": 4, "budget": 0.34}, events=6),
    "ranked_only_codes": _case(RANKED | {"quant_fraction": 1.0, "prefill_scores": "mean", "budget": 0.24}),
    "exact_decay": _case(HALF | {"quant_fraction": 0.3, "ranking": "decay"}),
    "exact_p_norm": _case(HALF | {"quant_fraction": 0.3, "ranking": "p_norm", "param_bits": 16, "bits": 2}),
    "exact_key_norm": _case(HALF | {"quant_fraction": 0.3, "ranking": "key_norm"}, model="bias"),
    "ranked_decay": _case(RANKED | {"ranking": "decay", "budget": 0.4, "prefill_pool": 4}, model="bias"),
    "ranked_p_norm": _case(RANKED | {"ranking": "p_norm", "budget": 0.4, "window": 8}, prompt=120),
    "ranked_key_norm": _case(RANKED | {"ranking": "key_norm", "budget": 0.34}),
    "window_16": _case(HALF | {"window": 16, "recent": 1, "budget": 0.36, "quant_fraction": 0.3}, prompt=160, events=2),
    "window_32": _case({"window": 32, "recent": 1, "bits": 4, "budget": 0.4}, prompt=160, events=2),
    "ranked_window_32": _case(
        RANKED | {"window": 32, "recent": 1, "budget": 0.6}, prompt=200, events=2, model="bias"
    ),
    "no_sinks": _case(HALF | {"sink": 0, "recent": 1, "budget": 0.26}),
    "streaming_llm": _eviction("streaming_llm", "sink=3", 0.3),
    "h2o": _eviction("h2o", "", 0.4),
    "snapkv": _eviction("snapkv", WINDOW, 0.4),
    "snapkv_variant": PolicyCase(
        CacheConfig(policy="snapkv", policy_options="window=8,kernel=4,pool=avg,recent=3,decay=0.9", budget=0.5),
        model="bias",
        events=3,
    ),
    "adakv": _eviction("adakv", f"{WINDOW},floor=0.4", 0.4),
    "criticalkv": _eviction("criticalkv", WINDOW, 0.4),
    "defensivekv": _eviction("defensivekv", f"{WINDOW},first_mass=0.3", 0.4),
    "layer_defensivekv": _eviction("layer_defensivekv", f"{WINDOW},first_mass=0.3,layer_share=1.4", 0.4),
    "kivi": _coded("kivi", "bits=4,group_size=4,residual=8", events=5),
    "kivi_bias": _coded("kivi", "bits=2,group_size=12,residual=12", "bfloat16", "bias"),
    "kvquant": _coded("kvquant", "bits=3,sink=2", events=2),
    "kvquant_bias": _coded("kvquant", "bits=2,sink=0", "bfloat16", "bias", events=2),
    "zipcache": _coded("zipcache", "gap=10"),
    "zipcache_bias": _coded("zipcache", "gap=4,important=0.45,high_bits=3", "bfloat16", "bias"),
}  # fmt: skip

ROWS = [name for name, case in CASES.items() if case.config.policy in TOKEN_METHODS]
TIERED = [name for name, case in CASES.items() if case.config.policy == "qevict"]
