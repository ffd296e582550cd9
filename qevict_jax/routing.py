# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Which windows move at a routing event, for one layer of one sequence (paper algorithm 1).

Decisions are made on a handful of numbers per window and come out as bounded lists of moves, which `event` carries out
on the big arrays. Slots are stable: a window stays where it is until it changes tier.

Candidates are the windows in full slots, the attended ones in code slots, and the window that has just left the ring.
They are ordered by (score, age); of equal scores the older window ranks higher, whatever slots they sit in.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


class Slots(NamedTuple):
    """The windows of one layer of one sequence.

    Attributes:
        full_window: ``[F]`` window index or -1.
        full_score: ``[F]``.
        code_window: ``[Q]`` window index or -1.
        code_score: ``[Q]``; meaningless where dormant.
        dormant: ``[Q]``, the codes of a window that sits in a full slot.
    """

    full_window: Int[Array, "F"]
    full_score: Float[Array, "F"]
    code_window: Int[Array, "Q"]
    code_score: Float[Array, "Q"]
    dormant: Bool[Array, "Q"]


class Moves(NamedTuple):
    """What to copy. Destinations out of range mean no move; sources out of range mean the window from the ring.

    Attributes:
        full_slot: ``[m]`` full slots to fill, F for none.
        full_source: ``[m]`` code slot whose window is dequantized into it, Q for the window from the ring.
        code_slot: ``[n]`` code slots to fill, Q for none.
        code_source: ``[n]`` full slot whose window is quantized into it, F for the window from the ring.
    """

    full_slot: Int[Array, "m"]
    full_source: Int[Array, "m"]
    code_slot: Int[Array, "n"]
    code_source: Int[Array, "n"]


class Event(NamedTuple):
    """A window that has left the ring. ``window`` is -1 if there is none."""

    window: Int[Array, ""]
    score: Float[Array, ""]


def _lowest(windows: Int[Array, "n"], scores: Float[Array, "n"]) -> Int[Array, ""]:
    """The slot to give up first: an empty one, else the lowest score, of equal ones the newest window."""
    scores = jnp.where(windows < 0, -jnp.inf, scores)
    tied = scores == scores.min()
    return jnp.argmax(jnp.where(tied, windows, -2)).astype(jnp.int32)


def route_exact(slots: Slots, new: Event) -> tuple[Slots, Moves]:
    """Residency "exact": full slots hold only windows that were never quantized.

    The window from the ring takes a full slot if it beats the lowest there, which is then quantized; the loser takes
    a code slot if it beats the lowest there, which is then evicted. Two argmins, at most one move into each tier.
    """
    full_slots, code_slots = slots.full_window.shape[0], slots.code_window.shape[0]
    arrived = new.window >= 0

    loser, loser_source = new, jnp.int32(full_slots)
    full_window, full_score = slots.full_window, slots.full_score
    target = jnp.int32(full_slots)
    if full_slots:
        low = _lowest(full_window, full_score)
        empty = full_window[low] < 0
        # the newcomer is the newest window, so a tie goes against it
        enters = arrived & (empty | (new.score > full_score[low]))
        target = jnp.where(enters, low, full_slots)
        pushed_out = Event(jnp.where(empty, -1, full_window[low]), full_score[low])
        loser = Event(*(jnp.where(enters, a, b) for a, b in zip(pushed_out, new, strict=True)))
        loser_source = jnp.where(enters, low, full_slots)
        full_window = full_window.at[target].set(new.window, mode="drop")
        full_score = full_score.at[target].set(new.score, mode="drop")

    code_window, code_score = slots.code_window, slots.code_score
    code_target = jnp.int32(code_slots)
    if code_slots:
        low = _lowest(code_window, code_score)
        beaten = (loser.score > code_score[low]) | (
            (loser.score == code_score[low]) & (loser.window < code_window[low])
        )
        stays = arrived & (loser.window >= 0) & ((code_window[low] < 0) | beaten)
        code_target = jnp.where(stays, low, code_slots)
        code_window = code_window.at[code_target].set(loser.window, mode="drop")
        code_score = code_score.at[code_target].set(loser.score, mode="drop")

    none = jnp.full((1,), code_slots, jnp.int32)
    moves = Moves(target[None], none, code_target[None], loser_source[None])
    return Slots(full_window, full_score, code_window, code_score, slots.dormant), moves


def route_ranked(slots: Slots, new: Event, quant_windows: int) -> tuple[Slots, Moves]:
    """Residency "ranked", the paper's: the best F windows sit in full slots, the next ``quant_windows`` in codes.

    A promoted window leaves its codes dormant, and a later demotion wakes them: codes are written once.
    """
    full_slots, code_slots = slots.full_window.shape[0], slots.code_window.shape[0]
    active = (slots.code_window >= 0) & ~slots.dormant
    windows = jnp.concatenate([slots.full_window, jnp.where(active, slots.code_window, -1), new.window[None]])
    scores = jnp.concatenate([slots.full_score, slots.code_score, new.score[None]])
    rank = _ranks(windows, scores)
    in_full = rank < full_slots
    retained = rank < full_slots + quant_windows
    of_full, of_codes, of_new = slice(0, full_slots), slice(full_slots, full_slots + code_slots), -1

    # codes that exist for the window in each full slot
    owner = (slots.full_window[:, None] == slots.code_window) & slots.dormant & (slots.full_window >= 0)[:, None]
    has_codes = owner.any(axis=1)

    # into full slots: attended windows and the newcomer that rank there, best first, into slots that are given up
    stays = in_full[of_full]
    free = _first(~stays, full_slots, full_slots)
    candidates = jnp.where(in_full & (jnp.arange(rank.shape[0]) >= full_slots), rank, rank.shape[0])
    best = jnp.argsort(candidates)[:full_slots].astype(jnp.int32)
    comes = candidates[best] < rank.shape[0]
    full_slot = jnp.where(comes, free, full_slots)
    full_source = jnp.where(comes, best - full_slots, code_slots)  # the newcomer stands behind the code slots
    full_window = jnp.where(stays, slots.full_window, -1).at[full_slot].set(windows[best], mode="drop")
    full_score = slots.full_score.at[full_slot].set(scores[best], mode="drop")

    # into codes: what leaves a full slot, or the ring, without codes of its own
    demoted = ~in_full & retained
    wakes = (owner & (demoted[of_full] & has_codes)[:, None]).any(axis=0)
    gone = (owner & ~retained[of_full][:, None]).any(axis=0) | (active & ~retained[of_codes])
    sleeps = active & in_full[of_codes]
    kept = (slots.code_window >= 0) & ~gone
    to_write = jnp.concatenate([demoted[of_full] & ~has_codes, demoted[of_new][None]])
    source = _first(to_write, full_slots + 1, full_slots + 1)
    empty = _first(~kept, full_slots + 1, code_slots)
    code_slot = jnp.where(source <= full_slots, empty, code_slots)
    code_source = jnp.minimum(source, full_slots)
    of_source = jnp.where(code_source == full_slots, rank.shape[0] - 1, code_source)
    code_window = jnp.where(kept, slots.code_window, -1).at[code_slot].set(windows[of_source], mode="drop")
    woken_score = jnp.where(owner, slots.full_score[:, None], 0.0).sum(axis=0)
    code_score = jnp.where(wakes, woken_score, slots.code_score).at[code_slot].set(scores[of_source], mode="drop")
    dormant = ((slots.dormant & ~wakes) | sleeps) & kept
    dormant = dormant.at[code_slot].set(False, mode="drop")
    new_slots = Slots(full_window, full_score, code_window, code_score, dormant)
    return new_slots, Moves(full_slot, full_source, code_slot, code_source)


def _ranks(windows: Int[Array, "n"], scores: Float[Array, "n"]) -> Int[Array, "n"]:
    """Place of each candidate in the order (score, age); empty ones get places out of any tier's reach."""
    count = windows.shape[0]
    places = jnp.arange(count, dtype=jnp.int32)
    missing = windows < 0
    order = lax.sort((missing, jnp.where(missing, 0.0, -scores), windows, places), num_keys=3)[-1]
    rank = jnp.zeros(count, jnp.int32).at[order].set(places)
    return jnp.where(missing, jnp.iinfo(jnp.int32).max // 2, rank)


def _first(flags: Bool[Array, "n"], count: int, filler: int) -> Int[Array, "count"]:
    """Indices of the first ``count`` flags that are set, then ``filler``."""
    return jnp.nonzero(flags, size=count, fill_value=filler)[0].astype(jnp.int32)
