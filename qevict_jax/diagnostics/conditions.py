# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What is compared: the conditions R0 to R4 of Appendix I, those of Appendix K, and any other cache."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from qevict_jax.config import CacheConfig
from qevict_jax.diagnostics.hidden_tier import HiddenTier
from qevict_jax.diagnostics.measure import Observed
from qevict_jax.diagnostics.one_way import OneWay
from qevict_jax.diagnostics.reference import Reference
from qevict_jax.diagnostics.selection import evicting_selection
from qevict_jax.diagnostics.trace import PolicyTrace, trace_policy
from qevict_jax.evaluation.prompt_record import PromptRecord
from qevict_jax.evaluation.sweep import describe
from qevict_jax.models import LanguageModel
from qevict_jax.plan import CachePlan
from qevict_jax.policies import make_policy
from qevict_jax.policies.base import Policy, Tier
from qevict_jax.policies.qevict import QEvict
from qevict_jax.types import QEvictError


@dataclass(frozen=True)
class Condition:
    """One way to hold the cache.

    Attributes:
        name: short, for tables.
        label: what it is, in words.
        config: the cache; for "full" and a selection of tokens nothing of it runs.
        variant: a policy made from the plan in place of the engine's.
        tokens: evict single tokens by the reference's own scores; the cache cannot hold windows of one token.
        live: an ablation that changes the run itself, left out of the curves.
    """

    name: str
    label: str
    config: CacheConfig
    variant: Callable[[CachePlan], Policy] | None = None
    tokens: bool = False
    live: bool = False


def paper_conditions(budget: float = 0.2, kv_dtype: str = "bfloat16") -> list[Condition]:
    """R0 to R4, and R3 with its quantized tier out of sight.

    All in the paper's accounting with q = 0.5, which reproduces its capacities: 7 + 28 windows for R3 and 1 + 11 for
    R4 with Llama-3.1-8B at 512 + 256 tokens.
    """

    def paper(**changes) -> CacheConfig:
        return CacheConfig.paper(budget=budget, kv_dtype=kv_dtype, accounting="paper", **changes)

    three = paper(quant_fraction=0.5)
    return [
        Condition("R0", "full cache", CacheConfig.full(kv_dtype)),
        Condition("R1", "tokens, two tiers", paper(quant_fraction=0.0), tokens=True),
        Condition("R2", "W=8, two tiers", paper(quant_fraction=0.0)),
        Condition("R3", "W=8, three tiers", three),
        Condition("R4", "W=32, three tiers", paper(quant_fraction=0.5, window=32)),
        Condition("R3*", "R3, quantized tier hidden", three, variant=HiddenTier, live=True),
    ]


def promotion_conditions(budget: float = 0.2, kv_dtype: str = "bfloat16") -> list[Condition]:
    """Appendix K: R3 without promotion, with it, and with residency "exact"; the same capacities."""
    ranked = CacheConfig.paper(budget=budget, kv_dtype=kv_dtype, accounting="paper", quant_fraction=0.5)
    exact = replace(ranked, residency="exact")
    return [
        Condition("one-way", "no promotion", exact, variant=OneWay),
        Condition("ranked", "with promotion", ranked),
        Condition("exact", "full slots stay filled", exact),
    ]


def condition_of(config: CacheConfig, index: int) -> Condition:
    """Any other cache of the engine."""
    return Condition(f"C{index}", describe(config), config)


def policy_of(model: LanguageModel, condition: Condition, total_len: int) -> Policy | None:
    """What runs, None for a selection of tokens from the reference.

    Raises:
        QEvictError: if the budget is too small.
    """
    if condition.tokens:
        tokens_kept(condition.config, total_len)
        return None
    policy = make_policy(model.config.kv_shape(), condition.config, total_len)
    return policy if condition.variant is None else condition.variant(policy.plan)


def observe(
    model: LanguageModel,
    condition: Condition,
    policy: Policy | None,
    reference: Reference,
    record: PromptRecord,
    tokens: np.ndarray,
) -> Observed:
    """Runs a condition on the article of a reference.

    Args:
        model: the model.
        condition: the condition.
        policy: from `policy_of`.
        reference: the full cache's run.
        record: the prompt.
        tokens: ``[N + 1]``, the tokens after the prompt.
    """
    config, settings = condition.config, reference.settings
    total = settings.prefill + settings.steps
    if policy is None:
        keep = tokens_kept(config, total)
        return Observed(_token_eviction(reference, config, keep), config.sink, 1, keep)
    if config.policy == "full":
        # it would only repeat the reference
        seen = settings.prefill + np.arange(0, settings.steps + 1, policy.event_steps)[:, None]
        placement = np.where(np.arange(total) < seen, Tier.FULL, Tier.UNSEEN).astype(np.int8)
        placement = np.broadcast_to(placement[:, None, None], (len(seen), len(reference.prompt_mass), 1, total))
        return Observed(PolicyTrace(placement, policy.event_steps, nll=reference.nll), 0, policy.event_steps)
    trace = trace_policy(model, policy, record, tokens)
    if isinstance(policy, QEvict):
        return Observed(trace, config.sink, config.window, policy.plan.full_windows)
    return Observed(trace, 0, 1)


def tokens_kept(config: CacheConfig, total_len: int) -> int:
    """Historical tokens that a budget holds in full precision, sinks and recent tokens paid first.

    Raises:
        QEvictError: if there is none.
    """
    assert config.budget is not None
    keep = int(config.budget * total_len) - config.sink - config.recent
    if keep < 1:
        raise QEvictError(
            f"budget={config.budget} of {total_len} tokens cannot hold {config.sink} sinks, {config.recent} recent "
            f"tokens and another one"
        )
    return keep


def _token_eviction(reference: Reference, config: CacheConfig, keep: int) -> PolicyTrace:
    layers, _, size = reference.prompt_mass.shape
    steps = reference.settings.steps
    placement = np.empty((steps + 1, layers, 1, size), np.int8)
    for layer in range(layers):
        decoded = np.concatenate([np.zeros((1, size)), reference.mass(layer).mean(axis=1).cumsum(axis=0)])
        placement[:, layer, 0] = evicting_selection(
            (decoded + reference.prompt_mass[layer].mean(axis=0)).astype(np.float32),
            prefill=reference.settings.prefill,
            sink=config.sink,
            recent=config.recent,
            window=1,
            keep=keep,
        )
    return PolicyTrace(placement, 1)
