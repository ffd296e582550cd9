# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Appendix K done as a paired experiment: what does promotion change, on the same tokens and layers?

The paper's two conditions read different articles, so its differences are directional only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from qevict_jax.diagnostics.comparison import Diagnosis
from qevict_jax.diagnostics.measure import Measures
from qevict_jax.diagnostics.revival import global_lir
from qevict_jax.diagnostics.summary import Estimate, estimate, per_trace

_RESAMPLES = 2000
_LIR_THRESHOLD = 3  # the paper's m
METRICS: dict[str, Callable[[Measures], list]] = {
    "missed": lambda x: x.missed,
    "agreement": lambda x: x.agreement["cumulative"],
    "ratio": lambda x: x.ratio["cumulative"],
    "agreement_decoding": lambda x: x.agreement["decoding"],
    "ratio_decoding": lambda x: x.ratio["decoding"],
    "churn": lambda x: x.churn,
}


@dataclass(frozen=True)
class Difference:
    """A condition against the baseline, trace by trace.

    Attributes:
        mean: mean difference over traces that have a value under both.
        low: lower end of the 95% interval from traces resampled with replacement.
        high: upper end.
        traces: how many.
    """

    mean: float
    low: float
    high: float
    traces: int


@dataclass(frozen=True)
class Comparison:
    """Table 18 for one condition.

    Attributes:
        values: each of `METRICS`, mean over traces.
        lir: Global LIR at the paper's threshold.
        transitions: windows moved from quantized to full precision, all layers and articles.
        differences: each of `METRICS` against the first condition; empty for the first.
        nll: mean minus log-probability of the true next token, nats.
    """

    values: dict[str, Estimate]
    lir: float
    transitions: int
    differences: dict[str, Difference]
    nll: float


def compare_promotion(diagnosis: Diagnosis) -> dict[str, Comparison]:
    """Every condition of a diagnosis against its first, by name."""
    baseline = diagnosis.conditions[0].name
    return {one.name: _compare(diagnosis, one.name, baseline) for one in diagnosis.conditions}


def _compare(diagnosis: Diagnosis, name: str, baseline: str) -> Comparison:
    articles, against = ([metrics[x] for metrics in diagnosis.measures] for x in (name, baseline))
    window = diagnosis.observed[name].window
    tokens = sum(int(layer.promotions.sum()) for article in articles for layer in article.moves)
    pairs = {key: (per_trace(articles, values), per_trace(against, values)) for key, values in METRICS.items()}
    episodes = [trace for article in articles for trace in article.policy.episodes]
    return Comparison(
        values={key: estimate(ours) for key, (ours, _) in pairs.items()},
        lir=global_lir(episodes, _LIR_THRESHOLD).rate,
        transitions=tokens // window,
        differences={} if name == baseline else {key: paired_difference(*pair) for key, pair in pairs.items()},
        nll=float(np.mean([article.nll for article in articles])),
    )


def paired_difference(
    ours: Float[np.ndarray, "traces"], baseline: Float[np.ndarray, "traces"], *, seed: int = 0
) -> Difference:
    """Mean of ``ours - baseline`` with a bootstrap interval; NaN without a common trace."""
    difference = ours - baseline
    difference = difference[~np.isnan(difference)]
    if not len(difference):
        return Difference(float("nan"), float("nan"), float("nan"), 0)
    picks = np.random.default_rng(seed).integers(0, len(difference), (_RESAMPLES, len(difference)))
    low, high = np.quantile(difference[picks].mean(axis=1), (0.025, 0.975))
    return Difference(float(difference.mean()), float(low), float(high), len(difference))
