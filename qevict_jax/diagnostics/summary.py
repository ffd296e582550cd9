# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of several articles in a few numbers: a trace is a layer of an article, as in the paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from qevict_jax.diagnostics.measure import LAGS, SPANS, Dynamics, Measures
from qevict_jax.diagnostics.revival import THRESHOLDS, Revival, global_lir, lagged_transitions
from qevict_jax.diagnostics.tier_mass import SHARED
from qevict_jax.policies.base import Tier


@dataclass(frozen=True)
class Estimate:
    """A mean over traces.

    Attributes:
        mean: over traces.
        deviation: standard deviation over traces, of the sample.
        traces: how many had a value.
    """

    mean: float
    deviation: float
    traces: int


@dataclass(frozen=True)
class Summary:
    """One policy over all articles. Shares and rates are fractions; NaN where there is nothing to measure.

    Attributes:
        missed: FMM, mean over eligible events and heads in each trace.
        missed_without_codes: FMM with the quantized tier inaccessible.
        churn: Selection Churn.
        shares: attention mass by tier, scores from the first prompt query on.
        decode_shares: the same, scores from decoding alone.
        agreement: QSA by span of the scores, see `measure.Measures`.
        ratio: R_Q by span.
        promotions: tokens promoted per event and layer.
        demotions: likewise.
        evictions: likewise.
        policy: Global LIR of the policy's full-precision tier by threshold.
        oracle: that of the oracle.
        policy_lags: ``P_ab`` of the policy by lag.
        oracle_lags: that of the oracle.
        nll: mean over articles of minus the log-probability of the true next token, nats.
    """

    missed: Estimate
    missed_without_codes: Estimate
    churn: Estimate
    shares: dict[Tier, Estimate]
    decode_shares: dict[Tier, Estimate]
    agreement: dict[str, Estimate]
    ratio: dict[str, Estimate]
    promotions: Estimate
    demotions: Estimate
    evictions: Estimate
    policy: dict[int, Revival]
    oracle: dict[int, Revival]
    policy_lags: dict[int, Float[np.ndarray, "2 2"]]
    oracle_lags: dict[int, Float[np.ndarray, "2 2"]]
    nll: float


def summarize(articles: Sequence[Measures]) -> Summary:
    """The numbers of one policy from its metrics on each article."""

    def over(values: Callable[[Measures], list]) -> Estimate:
        return estimate(per_trace(articles, values))

    def lir(dynamics: Callable[[Measures], Dynamics]) -> dict[int, Revival]:
        episodes = [trace for article in articles for trace in dynamics(article).episodes]
        return {threshold: global_lir(episodes, threshold) for threshold in THRESHOLDS}

    def lags(dynamics: Callable[[Measures], Dynamics]) -> dict[int, np.ndarray]:
        counts = sum(dynamics(article).transitions for article in articles)
        return {lag: lagged_transitions(one) for lag, one in zip(LAGS, np.asarray(counts), strict=True)}

    return Summary(
        missed=over(lambda x: x.missed),
        missed_without_codes=over(lambda x: x.missed_without_codes),
        churn=over(lambda x: x.churn),
        shares={tier: over(lambda x, tier=tier: [part[tier] for part in x.shares]) for tier in SHARED},
        decode_shares={tier: over(lambda x, tier=tier: [part[tier] for part in x.decode_shares]) for tier in SHARED},
        agreement={span: over(lambda x, span=span: x.agreement[span]) for span in SPANS},
        ratio={span: over(lambda x, span=span: x.ratio[span]) for span in SPANS},
        promotions=over(lambda x: [layer.promotions for layer in x.moves]),
        demotions=over(lambda x: [layer.demotions for layer in x.moves]),
        evictions=over(lambda x: [layer.evictions for layer in x.moves]),
        policy=lir(lambda x: x.policy),
        oracle=lir(lambda x: x.oracle),
        policy_lags=lags(lambda x: x.policy),
        oracle_lags=lags(lambda x: x.oracle),
        nll=float(np.mean([article.nll for article in articles])),
    )


def per_trace(articles: Sequence[Measures], values: Callable[[Measures], list]) -> Float[np.ndarray, "traces"]:
    """A metric's mean over events and heads in each trace, NaN where it has no value at all."""
    layers = [np.asarray(layer, np.float64) for article in articles for layer in values(article)]
    return np.array([float("nan") if np.isnan(layer).all() else np.nanmean(layer) for layer in layers])


def by_layer_and_head(articles: Sequence[Measures], values: Callable[[Measures], list]) -> Float[np.ndarray, "L heads"]:
    """A metric's mean over events and articles for each layer and head; NaN where it never has a value."""
    stacked = np.stack([np.stack([_over_events(layer) for layer in values(article)]) for article in articles])
    there = ~np.isnan(stacked)
    total = np.where(there, stacked, 0.0).sum(axis=0)
    return np.where(there.any(axis=0), total / np.maximum(there.sum(axis=0), 1), np.nan)


def _over_events(layer: np.ndarray) -> np.ndarray:
    there = ~np.isnan(layer)
    return np.where(
        there.any(axis=0), np.where(there, layer, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1), np.nan
    )


def estimate(values: Float[np.ndarray, "traces"]) -> Estimate:
    """Mean and spread of the values of traces; those without a value are left out."""
    values = values[~np.isnan(values)]
    if not len(values):
        return Estimate(float("nan"), float("nan"), 0)
    return Estimate(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0, len(values))
