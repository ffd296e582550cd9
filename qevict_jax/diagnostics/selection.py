# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Selections made from the reference's own scores: what a policy would keep if it saw the full cache's attention.

No cache runs here, so windows may be of any size: R1 of the paper evicts single tokens.
"""

import numpy as np
from jaxtyping import Bool, Float, Int8

from qevict_jax.policies.base import Tier


def windows_of(score: Float[np.ndarray, "*n S"], sink: int, window: int) -> Float[np.ndarray, "*n windows"]:
    """Sums over whole windows; sinks and a part of a window at the end are left out."""
    count = (score.shape[-1] - sink) // window
    inside = score[..., sink : sink + count * window]
    return inside.reshape(*score.shape[:-1], count, window).sum(axis=-1)


def top_windows(
    score: Float[np.ndarray, "E n"], exists: Bool[np.ndarray, "E n"], count: int
) -> Bool[np.ndarray, "E n"]:
    """The oracle of eq. 18: the best ``count`` windows that exist at each event; of equal ones the older."""
    ranked = np.argsort(np.where(exists, -score, np.inf), axis=1, kind="stable")[:, :count]
    best = np.zeros_like(exists)
    np.put_along_axis(best, ranked, True, axis=1)
    return best & exists


def evicting_selection(
    score: Float[np.ndarray, "E S"], *, prefill: int, sink: int, recent: int, window: int, keep: int
) -> Int8[np.ndarray, "E S"]:
    """Irreversible eviction by cumulative reference scores: eq. 12 in place of the policy's own scores.

    After each event the best ``keep`` windows among those still held and those that have just left the recent region
    stay in full precision, and the rest is gone.

    Args:
        score: S_t of each position, mean over heads, at events that are ``window`` decode steps apart.
        prefill: tokens of the prompt.
        sink: tokens protected at the start.
        recent: newest tokens, protected.
        window: W.
        keep: windows held.

    Returns:
        Tier of each position after each event.
    """
    events, size = score.shape
    result = np.full((events, size), Tier.UNSEEN, np.int8)
    windows = windows_of(score, sink, window)
    alive = np.ones(windows.shape[1], bool)
    for event in range(events):
        length = prefill + event * window
        aged = max(0, (length - sink - recent) // window)
        candidates = alive & (np.arange(windows.shape[1]) < aged)
        held = top_windows(windows[event][None], candidates[None], keep)[0]
        alive[:aged] = held[:aged]
        tier = result[event]
        tier[:length] = Tier.RECENT
        tier[: min(sink, length)] = Tier.SINK
        tier[sink : sink + aged * window] = np.repeat(np.where(held[:aged], Tier.FULL, Tier.EVICTED), window)
    return result
