# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""All metrics of one article: the reference's attention, layer by layer, against what each policy kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from qevict_jax.diagnostics.missed_mass import future_missed_mass, selection_churn
from qevict_jax.diagnostics.reference import Reference
from qevict_jax.diagnostics.revival import Episodes, Moves, count_moves, inactive_episodes, transition_counts
from qevict_jax.diagnostics.selection import top_windows, windows_of
from qevict_jax.diagnostics.tier_mass import mass_ratio, score_agreement, tier_mass
from qevict_jax.diagnostics.trace import PolicyTrace
from qevict_jax.policies.base import Tier

LAGS = (1, 2, 4, 8)
SPANS = ("cumulative", "decoding", "interval")
_HISTORICAL = (Tier.FULL, Tier.QUANTIZED, Tier.EVICTED)


@dataclass(frozen=True)
class Observed:
    """What `measure` wants to know of a policy.

    Attributes:
        trace: its run, or selection.
        sink: tokens protected at the start.
        window: W, 1 for a policy of tokens.
        oracle_windows: windows that the oracle of Global LIR selects, 0 for none.
    """

    trace: PolicyTrace
    sink: int
    window: int
    oracle_windows: int = 0


@dataclass
class Dynamics:
    """Comings and goings of one selection, a trace per layer, or per layer and head.

    Attributes:
        episodes: inactive episodes of each trace.
        transitions: pairs of states at each of `LAGS`, summed over traces.
    """

    episodes: list[Episodes] = field(default_factory=list)
    transitions: Int[np.ndarray, "lags 2 2"] = field(default_factory=lambda: np.zeros((len(LAGS), 2, 2), np.int64))

    def add(self, selected: np.ndarray, exists: np.ndarray) -> None:
        """One more trace ``[E, n]``."""
        self.episodes.append(inactive_episodes(selected, exists))
        for index, lag in enumerate(LAGS):
            if lag < len(selected):
                self.transitions[index] += transition_counts(selected, exists, lag)


@dataclass
class Measures:
    """Metrics of one policy on one article. Lists have an entry per layer.

    Attributes:
        events: decode steps before each event.
        missed: FMM ``[E, H]``.
        missed_without_codes: the same with the quantized tier inaccessible; empty if there is none.
        churn: ``[E-1, heads]``.
        shares: `tier_mass` with scores from the first prompt query on, ``[E, H]`` per tier.
        decode_shares: the same with scores from decoding alone.
        agreement: per span of `SPANS`, QSA ``[E]``: scores from the first prompt query to the event, from the first
            decode step to the event, and from one event to the next.
        ratio: R_Q, likewise.
        moves: tokens that changed tier, ``[E-1, heads]`` each.
        policy: full-precision selections of the policy.
        oracle: those of the oracle.
        nll: mean minus log-probability of the true next tokens, nats; NaN without execution.
    """

    events: Int[np.ndarray, "E"]
    missed: list = field(default_factory=list)
    missed_without_codes: list = field(default_factory=list)
    churn: list = field(default_factory=list)
    shares: list = field(default_factory=list)
    decode_shares: list = field(default_factory=list)
    agreement: dict[str, list] = field(default_factory=lambda: {span: [] for span in SPANS})
    ratio: dict[str, list] = field(default_factory=lambda: {span: [] for span in SPANS})
    moves: list[Moves] = field(default_factory=list)
    policy: Dynamics = field(default_factory=Dynamics)
    oracle: Dynamics = field(default_factory=Dynamics)
    nll: float = float("nan")


def measure(reference: Reference, observed: Mapping[str, Observed]) -> dict[str, Measures]:
    """Every metric of every policy; a layer of the reference is in memory at a time.

    Args:
        reference: the full cache's run on the article.
        observed: policies on the same article, by name.

    Returns:
        Metrics by name.
    """
    result = {name: Measures(one.trace.events) for name, one in observed.items()}
    for name, one in observed.items():
        if one.trace.nll is not None:
            result[name].nll = float(np.mean(one.trace.nll))
    for layer in range(reference.prompt_mass.shape[0]):
        mass = reference.mass(layer)
        for name, one in observed.items():
            _measure_layer(result[name], reference, mass, one, layer)
    return result


def _measure_layer(
    result: Measures, reference: Reference, mass: Float[np.ndarray, "N H S"], one: Observed, layer: int
) -> None:
    settings, trace, events = reference.settings, one.trace, one.trace.events
    heads = mass.shape[1]
    placement = trace.placement[:, layer]  # [E, heads, S]
    groups = heads // placement.shape[1] if placement.shape[1] > 1 else 1
    tiers = np.repeat(placement, groups, axis=1)  # [E, H or 1, S]

    where = {"events": events, "prefill": settings.prefill, "every": settings.every}
    result.missed.append(future_missed_mass(mass, tiers == Tier.EVICTED, **where))
    if np.any(tiers == Tier.QUANTIZED):
        lost = (tiers == Tier.EVICTED) | (tiers == Tier.QUANTIZED)
        result.missed_without_codes.append(future_missed_mass(mass, lost, **where))
    result.churn.append(selection_churn((placement == Tier.FULL) | (placement == Tier.QUANTIZED)))
    result.moves.append(count_moves(placement))

    decoded = _decoded_before(mass, events // settings.every)  # [E, H, S]
    score = decoded + reference.prompt_mass[layer]
    result.shares.append(tier_mass(score, tiers))
    result.decode_shares.append(tier_mass(decoded, tiers))

    first = one.sink + one.window * np.arange((placement.shape[-1] - one.sink) // one.window)
    of_windows = placement[:, :, first]  # [E, heads, n]
    exists = np.isin(of_windows, _HISTORICAL)
    for head in range(placement.shape[1]):
        result.policy.add(of_windows[:, head] == Tier.FULL, exists[:, head])
    window_score = windows_of(score.mean(axis=1), one.sink, one.window)
    if one.oracle_windows:
        there = np.asarray(exists.any(axis=1))
        result.oracle.add(top_windows(window_score, there, one.oracle_windows), there)
    if trace.window_mass is not None:
        members = of_windows[:, 0] == Tier.QUANTIZED
        _measure_scores(result, reference, mass, one, layer, members)


def _measure_scores(
    result: Measures,
    reference: Reference,
    mass: Float[np.ndarray, "N H S"],
    one: Observed,
    layer: int,
    members: np.ndarray,
) -> None:
    assert one.trace.window_mass is not None
    bounds = one.trace.events // reference.settings.every
    per_interval = np.add.reduceat(mass.mean(axis=1), bounds[:-1], axis=0)
    full = windows_of(per_interval, one.sink, one.window)  # [E-1, n]
    ours = one.trace.window_mass[:, layer]
    start = windows_of(reference.prompt_mass[layer].mean(axis=0), one.sink, one.window)
    zero = np.zeros_like(start)[None]
    ours_decoded, full_decoded = (np.concatenate([zero, x.cumsum(axis=0)]) for x in (ours, full))
    # of the tier as it is after an event: what came until then, or what comes until the next
    scores = {
        "cumulative": (start + ours_decoded, start + full_decoded, members),
        "decoding": (ours_decoded, full_decoded, members),
        "interval": (ours, full, members[:-1]),
    }
    for span, (quantized, reference_scores, inside) in scores.items():
        result.agreement[span].append(score_agreement(quantized, reference_scores, inside))
        result.ratio[span].append(mass_ratio(quantized, reference_scores, inside))


def _decoded_before(mass: Float[np.ndarray, "N H S"], bounds: Int[np.ndarray, "E"]) -> Float[np.ndarray, "E H S"]:
    """What each position received in decoding before each event."""
    result = np.zeros((len(bounds), *mass.shape[1:]), np.float32)
    total = np.zeros(mass.shape[1:], np.float32)
    for index in range(1, len(bounds)):
        total = total + mass[bounds[index - 1] : bounds[index]].sum(axis=0)
        result[index] = total
    return result
