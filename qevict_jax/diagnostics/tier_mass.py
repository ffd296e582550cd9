# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Observation II of the paper: where the attention mass lies, and what INT2 does to the scores."""

import numpy as np
from jaxtyping import Bool, Float, Int8

from qevict_jax.diagnostics.share import share
from qevict_jax.policies.base import Tier

SHARED = (Tier.FULL, Tier.QUANTIZED, Tier.EVICTED, Tier.RECENT)


def tier_mass(
    score: Float[np.ndarray, "*n S"], placement: Int8[np.ndarray, "*m S"]
) -> dict[Tier, Float[np.ndarray, "*n"]]:
    """Share of the cumulative reference attention in each tier (eq. 15).

        mu_t(z) = sum_{w: z_t(w) = z} S_t(w) / sum_w S_t(w),    S_t(w) = sum_{tau <= t} sum_{i in w} A_tau(i)   (eq. 12)

    Sums over positions equal sums over windows. Sinks belong to no window and are left out, as the shares of the paper
    show; `Tier.RECENT` is its Local.

    Args:
        score: S of each position.
        placement: tier of each position; the other axes may be 1.

    Returns:
        Shares of the four tiers, which add up to 1; NaN where no window has any mass. Float64.
    """
    inside = {tier: np.where(placement == tier, score, 0.0).sum(axis=-1, dtype=np.float64) for tier in SHARED}
    total = np.asarray(np.sum(list(inside.values()), axis=0))
    return {tier: share(np.asarray(part), total) for tier, part in inside.items()}


def score_agreement(
    quantized: Float[np.ndarray, "*n windows"],
    full: Float[np.ndarray, "*n windows"],
    members: Bool[np.ndarray, "*n windows"],
) -> Float[np.ndarray, "*n"]:
    """Quantized-Score Agreement (eq. 16): cosine of the scores of the quantized windows and the full cache's.

        QSA(r) = <s^Q, s^Full> / (|s^Q| |s^Full|)

    Args:
        quantized: s^Q, scores under quantized execution.
        full: s^Full, scores of the same windows in the full cache.
        members: the windows in the quantized tier, Q_r.

    Returns:
        Cosines in float64, NaN where the tier is empty or without any mass.
    """
    ours, theirs = (np.where(members, x, 0.0).astype(np.float64) for x in (quantized, full))
    norms = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    return share(np.asarray((ours * theirs).sum(axis=-1)), np.asarray(norms))


def mass_ratio(
    quantized: Float[np.ndarray, "*n windows"],
    full: Float[np.ndarray, "*n windows"],
    members: Bool[np.ndarray, "*n windows"],
) -> Float[np.ndarray, "*n"]:
    """Attention of the quantized windows against what the full cache gives them (eq. 17).

        R_Q(r) = sum_{w in Q_r} S^Q_r(w) / sum_{w in Q_r} S^Full_r(w)

    Arguments as in `score_agreement`; NaN where the tier is empty or without any mass.
    """
    ours, theirs = (np.where(members, x, 0.0).sum(axis=-1, dtype=np.float64) for x in (quantized, full))
    return share(np.asarray(ours), np.asarray(theirs))
