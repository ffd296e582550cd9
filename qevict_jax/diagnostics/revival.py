# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Observation III of the paper: windows that come back after they were inactive, and how tiers change hands.

Axes: E events, ``n`` windows; a trace is one layer (or head) of one article.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Int8

from qevict_jax.policies.base import Tier

THRESHOLDS = (1, 2, 3, 4, 8)
_RESAMPLES = 2000


class Episodes(NamedTuple):
    """Maximal runs of events at which a window is not selected.

    Attributes:
        length: events in each run.
        returned: whether the window was selected right after it; otherwise generation ended.
    """

    length: Int[np.ndarray, "runs"]
    returned: Bool[np.ndarray, "runs"]


def inactive_episodes(selected: Bool[np.ndarray, "E n"], exists: Bool[np.ndarray, "E n"]) -> Episodes:
    """Inactive episodes of the windows of one trace.

    Args:
        selected: X, whether each window is in the selected set after each event.
        exists: whether it can be: it has left the recent region. Once true it stays true.
    """
    length, returned = [], []
    run = np.zeros(selected.shape[1], np.int64)
    for active, there in zip(selected, exists, strict=True):
        back = active & (run > 0)
        length.append(run[back])
        returned.append(np.ones(back.sum(), bool))
        run = np.where(there & ~active, run + 1, 0)
    open_ended = run > 0
    length.append(run[open_ended])
    returned.append(np.zeros(open_ended.sum(), bool))
    return Episodes(np.concatenate(length), np.concatenate(returned))


@dataclass(frozen=True)
class Revival:
    """Global LIR of many traces at one threshold.

    Attributes:
        threshold: m.
        eligible: inactive episodes of at least m events.
        returned: those that ended with the window's return.
        rate: ``returned / eligible``, NaN without any.
        low: lower end of the 95% interval, from traces resampled with replacement: episodes of a trace belong together.
        high: upper end.
        median_return: median number of events from eligibility to the return, NaN without any.
        traces: number of traces.
    """

    threshold: int
    eligible: int
    returned: int
    rate: float
    low: float
    high: float
    median_return: float
    traces: int


def global_lir(traces: Sequence[Episodes], threshold: int, *, seed: int = 0) -> Revival:
    """Global LIR (eq. 18) with a bootstrap interval over traces.

        GlobalLIR(m) = #{inactive episodes of m events or more that later re-enter} / #{such episodes}

    Each maximal episode counts once; one that generation cuts off counts as not returned.

    Args:
        traces: the episodes of each trace.
        threshold: m.
        seed: of the resampling.
    """
    eligible = np.array([np.sum(x.length >= threshold) for x in traces], np.int64)
    returned = np.array([np.sum(x.returned & (x.length >= threshold)) for x in traces], np.int64)
    rate = low = high = float("nan")
    if eligible.sum():
        rate = float(returned.sum() / eligible.sum())
        picks = np.random.default_rng(seed).integers(0, len(traces), (_RESAMPLES, len(traces)))
        totals = eligible[picks].sum(axis=1)
        rates = returned[picks].sum(axis=1)[totals > 0] / totals[totals > 0]
        low, high = (float(x) for x in np.quantile(rates, (0.025, 0.975)))
    waits = [x.length[x.returned & (x.length >= threshold)] - threshold + 1 for x in traces]
    joined = np.concatenate(waits) if waits else np.zeros(0)
    median = float(np.median(joined)) if joined.size else float("nan")
    return Revival(threshold, int(eligible.sum()), int(returned.sum()), rate, low, high, median, len(traces))


def transition_counts(
    selected: Bool[np.ndarray, "E n"], exists: Bool[np.ndarray, "E n"], lag: int
) -> Int[np.ndarray, "2 2"]:
    """Pairs ``(X_r, X_{r+lag})`` of windows that exist at r, counted; row a, column b."""
    before, after = selected[:-lag][exists[:-lag]], selected[lag:][exists[:-lag]]
    return np.array([[np.sum((before == a) & (after == b)) for b in (False, True)] for a in (False, True)])


def lagged_transitions(counts: Int[np.ndarray, "2 2"]) -> Float[np.ndarray, "2 2"]:
    """Lagged transition probabilities (eq. 19) from the pairs of all traces.

    P_ab(lag) = Pr[X_{r+lag} = b | X_r = a]; NaN where no window was ever in state a.
    """
    totals = counts.sum(axis=1, keepdims=True)
    return np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)


class Moves(NamedTuple):
    """Positions that change tier between consecutive events, ``[E-1, *n]`` each.

    Attributes:
        promotions: quantized to full precision.
        demotions: full precision to quantized.
        evictions: out of any tier, the recent region included.
    """

    promotions: Int[np.ndarray, "E-1 *n"]
    demotions: Int[np.ndarray, "E-1 *n"]
    evictions: Int[np.ndarray, "E-1 *n"]


def count_moves(placement: Int8[np.ndarray, "E *n S"]) -> Moves:
    """Promotions, demotions and evictions per event, in tokens."""
    before, after = placement[:-1], placement[1:]

    def moved(source: Bool[np.ndarray, "E *n S"], target: Tier) -> Int[np.ndarray, "E *n"]:
        return (source & (after == target)).sum(axis=-1)

    held = (before == Tier.FULL) | (before == Tier.QUANTIZED) | (before == Tier.RECENT)
    return Moves(
        promotions=moved(before == Tier.QUANTIZED, Tier.FULL),
        demotions=moved(before == Tier.FULL, Tier.QUANTIZED),
        evictions=moved(held, Tier.EVICTED),
    )
