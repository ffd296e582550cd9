# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Routing decisions against algorithm 1 on Python sets, over random events with many equal scores."""

from functools import cache, partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qevict_jax.routing import Event, Slots, route_exact, route_ranked
from tests.algorithm1 import Algorithm1

SIZES = [(3, 4), (2, 1), (1, 3), (0, 3), (3, 0), (1, 1)]


@cache
def compiled(full_slots: int, quant_windows: int, ranked: bool):
    """One program per size."""
    return jax.jit(partial(route_ranked, quant_windows=quant_windows) if ranked else route_exact)


class Tiers:
    """Slots and what lies in them; carries out moves and fails on any that would lose or reuse something."""

    def __init__(self, full_slots: int, quant_windows: int, ranked: bool) -> None:
        self.size = full_slots, quant_windows
        self.ranked = ranked
        self.decide = compiled(full_slots, quant_windows, ranked)
        code_slots = quant_windows + full_slots if ranked and quant_windows else quant_windows
        self.slots = Slots(
            full_window=np.full(full_slots, -1, np.int32),
            full_score=np.zeros(full_slots, np.float32),
            code_window=np.full(code_slots, -1, np.int32),
            code_score=np.zeros(code_slots, np.float32),
            dormant=np.zeros(code_slots, bool),
        )
        self.full_holds = [None] * full_slots  # (window, was it ever quantized)
        self.codes_hold = [None] * code_slots  # window

    def rescore(self, score: dict[int, float]) -> None:
        """Gives windows new scores, as decode steps do; in a slot that is empty or dormant it is noise."""
        full, codes = self.slots.full_score.copy(), self.slots.code_score.copy()
        for numbers, windows in ((full, self.slots.full_window), (codes, self.slots.code_window)):
            for slot, window in enumerate(windows):
                numbers[slot] = score[int(window)] if window >= 0 else 7.0
        codes[self.slots.dormant] = 5.0
        self.slots = self.slots._replace(full_score=full, code_score=codes)

    def event(self, window: int, score: float) -> int:
        """One event; returns how many windows moved."""
        new, moves = jax.device_get(self.decide(self.slots, Event(np.int32(window), np.float32(score))))
        full_slots, code_slots = len(self.full_holds), len(self.codes_hold)
        old_full, old_codes = list(self.full_holds), list(self.codes_hold)
        written = set()
        for slot, source in zip(moves.full_slot, moves.full_source, strict=True):
            if slot >= full_slots:
                continue
            assert ("full", int(slot)) not in written, "a slot is written twice"
            written.add(("full", int(slot)))
            self.full_holds[slot] = (window, False) if source >= code_slots else (old_codes[source], True)
        for slot, source in zip(moves.code_slot, moves.code_source, strict=True):
            if slot >= code_slots:
                continue
            assert ("codes", int(slot)) not in written, "a slot is written twice"
            written.add(("codes", int(slot)))
            moved, quantized = (window, False) if source >= full_slots else old_full[source]
            assert not quantized, "a window is quantized twice"
            self.codes_hold[slot] = moved
        for slot, index in enumerate(new.full_window):
            assert index < 0 or self.full_holds[slot][0] == index, "a full slot holds another window"
        for slot, index in enumerate(new.code_window):
            assert index < 0 or self.codes_hold[slot] == index, "a code slot holds another window"
        self.slots = new
        return len(written)

    @property
    def full(self) -> dict[int, float]:
        """Windows in full slots and their scores."""
        return _found(self.slots.full_window, self.slots.full_score)

    @property
    def codes(self) -> dict[int, float]:
        """Attended windows in code slots and their scores."""
        return _found(np.where(self.slots.dormant, -1, self.slots.code_window), self.slots.code_score)


def _found(windows: np.ndarray, scores: np.ndarray) -> dict[int, float]:
    found = {int(w): float(s) for w, s in zip(windows, scores, strict=True) if w >= 0}
    assert len(found) == np.sum(windows >= 0)
    return found


events = st.lists(
    st.tuples(
        st.booleans() | st.just(True),  # a window arrives
        st.lists(st.integers(0, 3), min_size=8, max_size=8),  # what windows gain, few values so that many are equal
    ),
    min_size=1,
    max_size=14,
)


def run(size, ranked, history):
    """Plays a history on our slots and on sets, comparing after every event; returns the sets of the last."""
    full_slots, quant_windows = size
    ours = Tiers(full_slots, quant_windows, ranked)
    sets = Algorithm1(full_slots, quant_windows, ranked, "cumulative")
    retained = []
    for arrives, gains in history:
        gained = {w: float(gains[w % len(gains)]) for w in [*sets.full, *sets.codes, sets.aged]}
        sets.observe(gained)
        ours.rescore(sets.score)
        window = sets.aged if arrives else -1
        before = set(ours.full) | set(ours.codes)
        moved = ours.event(window, sets.score[window] if arrives else 0.0)
        sets.event(arrives, {})
        assert (set(ours.full), set(ours.codes)) == (sets.full, sets.codes)
        for held in (ours.full, ours.codes):
            assert all(score == sets.score[w] for w, score in held.items())
        assert (set(ours.full) | set(ours.codes)) - before <= {window}, "an evicted window came back"
        assert moved <= (2 * full_slots + 1 if ranked else 2)
        if ranked:
            asleep = {int(w) for w in ours.slots.code_window[ours.slots.dormant]}
            quantized = {w for w, was in filter(None, ours.full_holds) if was} & set(ours.full)
            assert asleep >= quantized and asleep <= set(ours.full)
        retained.append(sets.full | sets.codes)
    return retained


@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(history=events)
def test_exact(size, history):
    run(size, False, history)


@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(history=events)
def test_ranked(size, history):
    run(size, True, history)


@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(history=events)
def test_both_residencies_retain_the_same_windows(size, history):
    assert run(size, False, history) == run(size, True, history)


def test_a_tie_keeps_the_older_window():
    """Whatever slots they sit in: three windows of one score, the newest goes."""
    slots = Slots(
        full_window=np.zeros(0, np.int32),
        full_score=np.zeros(0, np.float32),
        code_window=np.array([1, 0], np.int32),
        code_score=np.array([1.0, 1.0], np.float32),
        dormant=np.zeros(2, bool),
    )
    for decide in (compiled(len(slots.full_window), 2, False), compiled(len(slots.full_window), 2, True)):
        new, _ = decide(slots, Event(np.int32(2), np.float32(1.0)))
        assert new.code_window.tolist() == [1, 0]
        new, moves = decide(slots, Event(np.int32(2), np.float32(1.5)))
        assert new.code_window.tolist() == [2, 0] and moves.code_slot[0] == 0


def test_a_negative_score_beats_an_empty_slot():
    """Scores by key norms are negative; an empty slot counts as lower than any."""
    slots = Slots(
        full_window=np.array([-1], np.int32),
        full_score=np.zeros(1, np.float32),
        code_window=np.array([-1, 0], np.int32),
        code_score=np.array([0.0, -9.0], np.float32),
        dormant=np.zeros(2, bool),
    )
    for decide in (compiled(len(slots.full_window), 1, False), compiled(len(slots.full_window), 1, True)):
        new, _ = decide(slots, Event(np.int32(1), np.float32(-11.0)))
        retained = set(new.full_window.tolist()) | set(new.code_window[~np.asarray(new.dormant)].tolist())
        assert retained >= {0, 1}
