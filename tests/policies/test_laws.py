# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for every cache policy, over the whole table of `tests/policy_table.py`: attention, scores and tiers."""

import numpy as np
import pytest

from qevict_jax.cache import nbytes
from tests.policies.reference_run import expectations
from tests.policy_table import CASES, TIERED
from tests.recording import BATCH, INACTIVE, STOPS, driver, recording
from tests.tier_contents import local_tokens, ring_tokens, slots

LOGITS = {"float32": 2e-4, "bfloat16": 5e-3, "float16": 1e-3}
MASS = {"float32": 2e-5, "bfloat16": 1e-3, "float16": 2e-4}
STORED = {"float32": 1e-4, "bfloat16": 2**-7, "float16": 2**-10}
LAYERS = 2


def rows_with_prompt(name):
    return [row for row in range(BATCH) if recording(name)[0].count[row]]


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_attention_over_what_the_cache_holds(name):
    """Sinks, ring, full windows and dequantized windows together are one softmax; the reference is float64."""
    for expected in expectations(name):
        if expected.logits is None:
            continue
        ours = expected.moment.logits[expected.row]
        np.testing.assert_allclose(ours, expected.logits, rtol=0, atol=LOGITS[CASES[name].config.kv_dtype])


@pytest.mark.parametrize("name", TIERED)
def test_recent_tokens_and_sinks_are_kept_as_they_are(name):
    dtype = CASES[name].config.kv_dtype
    for expected in expectations(name):
        if expected.traces is None:
            continue
        cache, row = expected.moment.cache, expected.row
        for layer in range(LAYERS):
            made = np.stack([expected.traces[layer].keys, expected.traces[layer].values], axis=2)
            first = cache.length[row] - len(made)
            held = [position for position in local_tokens(cache, row) if position >= first]
            ours = ring_tokens(cache, layer, row, np.array(held, int))
            np.testing.assert_allclose(ours, made[held - first], rtol=STORED[dtype], atol=STORED[dtype])


@pytest.mark.parametrize("name", TIERED)
def test_scores_are_sums_of_attention_mass(name):
    """Of all heads and steps since the prompt, windows in the ring included; or what the ranking makes of it."""
    atol = MASS[CASES[name].config.kv_dtype]
    for expected in expectations(name):
        cache, row = expected.moment.cache, expected.row
        for layer, sim in enumerate(expected.sims):
            for ours, theirs in ((cache.score, sim.score), (cache.mass, sim.mass)):
                if ours is None:
                    continue
                found = _by_window(cache, ours, layer, row, ring=CASES[name].config.ranking != "key_norm")
                wanted = np.array([theirs[window] for window in found])
                np.testing.assert_allclose(list(found.values()), wanted, rtol=1e-4, atol=atol)


def _by_window(cache, numbers, layer, row, ring):
    """A number per window, from the slot that the window is in."""
    at = slots(cache, layer, row)
    found = {window: numbers.full[layer, row, slot] for window, slot in at.full.items()}
    found |= {window: numbers.quant[layer, row, slot] for window, slot in at.codes.items()}
    if ring:
        layout, aged = cache.layout, int(cache.aged[row])
        in_ring = range(aged, aged + layout.ring_windows)
        found |= {window: numbers.ring[layer, row, window % layout.ring_windows] for window in in_ring}
    return found


@pytest.mark.parametrize("name", TIERED)
def test_tiers_are_those_of_algorithm_1(name):
    """Retained are the highest ranked; full slots hold the best of them, or all that were never quantized."""
    for expected in expectations(name):
        for layer, sim in enumerate(expected.sims):
            at = slots(expected.moment.cache, layer, expected.row)
            assert (set(at.full), set(at.codes)) == (sim.full, sim.codes), (expected.row, layer)


@pytest.mark.parametrize("name", TIERED)
def test_each_token_is_in_one_tier_or_evicted(name):
    evicted_once = {}
    for moment in recording(name):
        cache = moment.cache
        layout = cache.layout
        for row in rows_with_prompt(name):
            length, aged = int(cache.length[row]), int(cache.aged[row])
            assert length - layout.sink - aged * layout.window <= layout.ring
            local = local_tokens(cache, row)
            for layer in range(LAYERS):
                at = slots(cache, layer, row)
                assert not set(at.full) & set(at.codes)
                assert set(at.dormant) <= set(at.full)
                assert len(at.full) <= layout.full_windows and len(at.codes) <= layout.quant_windows
                held = set(at.full) | set(at.codes)
                assert all(window < aged for window in held)
                evicted = set(range(aged)) - held
                before = evicted_once.setdefault((row, layer), set())
                assert before <= evicted, "a window came back"
                before |= evicted
            expected = [p for p in range(length) if p < layout.sink or p >= layout.sink + aged * layout.window]
            assert local.tolist() == expected


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_of_the_plan(name):
    plan, case = driver(name).policy.plan, CASES[name]
    for moment in recording(name):
        assert nbytes(moment.cache) == BATCH * plan.kv_bytes
    assert sum(size for _, size in plan.parts) == plan.kv_bytes
    if case.config.budget is not None:
        assert plan.kv_bytes <= case.config.budget * plan.full_kv_bytes


@pytest.mark.parametrize("name", CASES)
def test_rows_advance_by_what_they_are_fed(name):
    length = np.zeros(BATCH, int)
    for moment in recording(name):
        if moment.count is not None:
            length += moment.count
        assert moment.cache.length.tolist() == length.tolist()
    assert length[INACTIVE] == 0
    assert length[STOPS] < length[0]


def test_the_table_makes_windows_move():
    """Or the laws would hold of nothing."""
    moved = {"evicted": set(), "promoted": set(), "demoted": set(), "dormant": set()}
    for name in TIERED:
        moments = recording(name)
        for before, after in zip(moments, moments[1:], strict=False):
            for row in rows_with_prompt(name):
                for layer in range(LAYERS):
                    old, new = slots(before.cache, layer, row), slots(after.cache, layer, row)
                    events = {
                        "evicted": after.cache.aged[row] > len(new.full) + len(new.codes),
                        "promoted": set(old.codes) & set(new.full),
                        "demoted": set(old.full) & set(new.codes),
                        "dormant": new.dormant,
                    }
                    for event, happens in events.items():
                        if happens:
                            moved[event].add(name)
    assert moved["evicted"] == set(TIERED)
    ranked = {name for name in TIERED if CASES[name].config.residency == "ranked"}
    assert len(moved["promoted"]) >= 3 and moved["promoted"] <= ranked
    assert len(moved["dormant"]) >= 3 and moved["dormant"] <= ranked
    assert len(moved["demoted"] & ranked) >= 3 and len(moved["demoted"] - ranked) >= 3
