# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Observation I of the paper: what a policy discards and later misses, and how often it changes its mind.

Axes: E events, N sums of decode steps, S positions, ``*n`` any others (layers, heads), which may be 1 in placements.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from qevict_jax.diagnostics.share import share

HORIZON = 32


def future_missed_mass(
    mass: Float[np.ndarray, "N *n S"],
    lost: Bool[np.ndarray, "E *m S"],
    events: Int[np.ndarray, "E"],
    *,
    prefill: int,
    every: int = 1,
    horizon: int = HORIZON,
) -> Float[np.ndarray, "E *n"]:
    """Future Missed Mass (eq. 13): the share of coming full-cache attention that goes to what is no longer there.

        FMM_H(r) = sum_{t=r+1}^{min(r+H, T)} sum_{i in E_r, i <= r} A_t(i)
                 / sum_{t=r+1}^{min(r+H, T)} sum_{i <= r} A_t(i)

    Only positions that existed at the event count: ``prefill + r`` of them after r decode steps.

    Args:
        mass: A, attention of the full cache, summed over ``every`` steps.
        lost: E_r, positions that the policy cannot reach after each event.
        events: r, decode steps before each event; a multiple of ``every``.
        prefill: tokens of the prompt.
        every: decode steps in one entry of ``mass``.
        horizon: H, decode steps; a multiple of ``every``.

    Returns:
        FMM of each event, NaN where no step follows or none attends to the past. Float64.
    """
    if horizon % every or np.any(events % every):
        raise ValueError(f"horizon={horizon} and events must be multiples of every={every}")
    result = np.full((len(events), *mass.shape[1:-1]), np.nan)
    for index, event in enumerate(events):
        future = mass[event // every : (event + horizon) // every, ..., : prefill + event]
        if len(future):
            received = future.sum(axis=0, dtype=np.float64)
            missed = np.where(lost[index, ..., : prefill + event], received, 0.0)
            result[index] = share(np.asarray(missed.sum(axis=-1)), np.asarray(received.sum(axis=-1)))
    return result


def selection_churn(retained: Bool[np.ndarray, "E *n S"]) -> Float[np.ndarray, "E-1 *n"]:
    """Selection Churn (eq. 14): Jaccard distance of the sets retained after consecutive events.

        Churn(r) = 1 - |R_r and R_{r+1}| / |R_r or R_{r+1}|

    Args:
        retained: R, historical positions kept after each event; sinks and the recent region do not belong in it.

    Returns:
        Churn between each event and the next, NaN where both sets are empty.
    """
    before, after = retained[:-1], retained[1:]
    shared = (before & after).sum(axis=-1)
    union = (before | after).sum(axis=-1)
    return 1.0 - share(np.asarray(shared, np.float64), np.asarray(union, np.float64))
