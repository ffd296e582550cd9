# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""One-way demotion: decisions by hand, and no promotion in a run."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.diagnostics.one_way import OneWay, route_one_way
from qevict_jax.diagnostics.revival import count_moves, global_lir, inactive_episodes
from qevict_jax.policies.base import Tier
from qevict_jax.routing import Event, Slots
from tests.diagnostics.tiny_run import CONFIG, run
from tests.quick_compile import QUICK


@cache
def decision(quant_windows):
    return jax.jit(partial(route_one_way, quant_windows=quant_windows), compiler_options=QUICK)


def decide(full, codes, new, quant_windows=3):
    """Tiers after an event, ``{window: score}`` each; ``new`` is ``(window, score)``."""

    def slots(content, size):
        windows = [*content, *[-1] * (size - len(content))]
        return jnp.array(windows, jnp.int32), jnp.array(
            [*content.values(), *[0.0] * (size - len(content))], jnp.float32
        )

    given = Slots(*slots(full, 2), *slots(codes, 3), jnp.zeros(3, bool))
    event = Event(jnp.int32(new[0]), jnp.float32(new[1]))
    after, moves = decision(quant_windows)(given, event)
    # what moves say must be what the slots become
    sources = [*given.full_window.tolist(), new[0]]
    for slot, source in zip(moves.code_slot.tolist(), moves.code_source.tolist(), strict=True):
        if slot < 3:
            assert after.code_window[slot] == sources[source]
    if moves.full_slot[0] < 2:
        assert moves.full_source[0] == 3 and after.full_window[moves.full_slot[0]] == new[0]
    for old, now in ((given.full_window, after.full_window), (given.code_window, after.code_window)):
        kept = [window for window in now.tolist() if window >= 0 and window in old.tolist()]
        assert [old.tolist().index(w) for w in kept] == [now.tolist().index(w) for w in kept], "slots are stable"
    in_full = {w: s for w, s in zip(after.full_window.tolist(), after.full_score.tolist(), strict=True) if w >= 0}
    in_codes = {w: s for w, s in zip(after.code_window.tolist(), after.code_score.tolist(), strict=True) if w >= 0}
    return in_full, in_codes


@pytest.mark.parametrize(
    "full, codes, new, expected",
    [
        # a quantized window ranks first: it stays where it is, and the slot that it deserves stays empty
        ({0: 5.0, 1: 3.0}, {2: 9.0}, (3, 1.0), ({0: 5.0}, {2: 9.0, 1: 3.0, 3: 1.0})),
        # two of them: the full tier is empty, and the lowest of four candidates for codes is evicted
        ({0: 5.0, 1: 3.0}, {2: 9.0, 3: 8.0}, (4, 4.0), ({}, {2: 9.0, 3: 8.0, 0: 5.0})),
        # the newcomer takes the place of the lowest
        ({0: 5.0, 1: 3.0}, {2: 1.0}, (3, 4.0), ({0: 5.0, 3: 4.0}, {2: 1.0, 1: 3.0})),
        # equal scores: the older window stands above
        ({0: 5.0, 1: 3.0}, {}, (2, 3.0), ({0: 5.0, 1: 3.0}, {2: 3.0})),
        # nothing arrives and nothing changes
        ({0: 5.0, 1: 3.0}, {2: 1.0}, (-1, 0.0), ({0: 5.0, 1: 3.0}, {2: 1.0})),
    ],
)
def test_by_hand(full, codes, new, expected):
    assert decide(full, codes, new) == expected


def test_codes_hold_no_more_than_the_plan_says():
    assert decide({0: 5.0, 1: 3.0}, {2: 2.0}, (3, 1.0), quant_windows=1) == ({0: 5.0, 1: 3.0}, {2: 2.0})


def test_a_run_has_demotions_and_no_promotions():
    config = replace(CONFIG, residency="exact")
    found = run(config, OneWay)
    moves = count_moves(found.placement[:, :, 0])
    assert moves.demotions.sum() > 0 and moves.evictions.sum() > 0 and moves.promotions.sum() == 0
    first = config.sink + config.window * np.arange(found.window_mass.shape[-1])
    tiers = found.placement[:, 0, 0][:, first]
    episodes = inactive_episodes(tiers == Tier.FULL, np.isin(tiers, [Tier.FULL, Tier.QUANTIZED, Tier.EVICTED]))
    assert len(episodes.length) and global_lir([episodes], 1).rate == 0.0
    # unlike "exact", which keeps its full slots filled
    held = (found.placement == Tier.FULL).sum(axis=-1)
    assert held.max() == found.plan.full_windows * config.window > held.min()
