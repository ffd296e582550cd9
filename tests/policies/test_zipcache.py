# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""ZipCache: which tokens get the most bits, at prefill and when they come, and at how many bytes."""

import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.policies import plan_cache, policy_options
from qevict_jax.policies.probe_saliency import probe_positions
from qevict_jax.policies.zipcache import Options
from qevict_jax.types import KVShape, QEvictError
from tests.coded_contents import half, zipcache_classes
from tests.policies.reference_run import expectations
from tests.recording import BATCH, driver, recording
from tests.tier_contents import numbers

GAP = 10  # of the row "zipcache"


def high_count(stored):
    """70%, rounded up."""
    return -(-stored * 70 // 100)


def assert_slots_hold(cache, layer, row, head, part, first, keys, values):
    """Slots from ``first`` on hold these keys and values ``[n, D]``, to the steps of their parameters."""
    slots = slice(first, first + len(keys))
    found = zipcache_classes(cache, layer, row)[part][slots, head]
    tokens = cache.classes[part]
    scale, _, unit = half(tokens.channels[layer, row]).reshape(3, 2, -1)[:, head]
    step = half(tokens.slots[layer, row]).reshape(2, -1)[0, slots, None]
    slack = 2e-3 * np.abs(keys).max(initial=1)
    assert (np.abs(found[:, 0] - keys) <= scale / 2 + slack).all(), part
    assert (np.abs(found[:, 1] - values) <= step * unit / 2 + slack).all(), part


def test_salient_prompt_tokens_are_those_of_the_formula():
    """Sum of the probes' attention over the group's heads, divided by the distance from the end; in float64."""
    checked = 0
    for expected in expectations("zipcache"):
        if expected.moment.kind != "prefill":
            continue
        cache, row = expected.moment.cache, expected.row
        n, size = int(cache.length[row]), expected.moment.tokens.shape[1]
        assert int(cache.stored[row]) == n
        at, there = (np.asarray(x)[0] for x in probe_positions(jnp.array([n]), size))
        for layer, trace in enumerate(expected.traces):
            received = trace.weights[:, at[there]].sum(axis=1)
            saliency = received.reshape(trace.keys.shape[1], -1, n).sum(axis=1) / (n - np.arange(n))
            for head in range(len(saliency)):
                salient = np.sort(np.argsort(-saliency[head], kind="stable")[: high_count(n)])
                others = np.setdiff1d(np.arange(n), salient)
                for part, chosen in enumerate((salient, others)):
                    if len(chosen):
                        keys, values = trace.keys[chosen, head], trace.values[chosen, head]
                        assert_slots_hold(cache, layer, row, head, part, 0, keys, values)
                        checked += len(chosen)
    assert checked > 300


def test_new_tokens_are_classified_by_the_newest_query():
    """When ``gap`` of them have gathered, by the attention of the last step before the event."""
    events = 0
    weights = {}
    moments = recording("zipcache")
    before = {id(after): earlier for earlier, after in zip(moments, moments[1:], strict=False)}
    for expected in expectations("zipcache"):
        row, cache = expected.row, expected.moment.cache
        if expected.traces is not None:
            weights[row] = expected.traces
            continue
        old = before[id(expected.moment)].cache
        stored, now = int(old.stored[row]), int(cache.stored[row])
        assert now - stored == (GAP if int(old.length[row]) - stored >= GAP else 0)
        if now == stored:
            continue
        events += 1
        tokens = numbers(old.ring[:, row, np.arange(stored, now) % old.layout.ring], "float32")
        tokens = tokens.reshape(tokens.shape[0], GAP, 2, 2, -1)
        for layer, trace in enumerate(weights[row]):
            paid = trace.weights[:, -1, stored:now].reshape(2, -1, GAP).sum(axis=1)
            for head in range(2):
                count = high_count(now) - high_count(stored)
                salient = np.sort(np.argsort(-paid[head], kind="stable")[:count])
                others = np.setdiff1d(np.arange(GAP), salient)
                starts = high_count(stored), stored - high_count(stored)
                for part, chosen in enumerate((salient, others)):
                    keys, values = (tokens[layer, chosen, head, i] for i in (0, 1))
                    assert_slots_hold(cache, layer, row, head, part, starts[part], keys, values)
    assert events >= 3


def test_values_are_written_once_and_keys_unless_their_range_grows():
    grown = 0
    for before, after in zip(recording("zipcache"), recording("zipcache")[1:], strict=False):
        for row in range(BATCH):
            stored = int(before.cache.stored[row])
            for layer in range(2):
                contents = (zipcache_classes(moment.cache, layer, row) for moment in (before, after))
                for part, (old, new) in enumerate(zip(*contents, strict=True)):
                    used = before.cache.layout.used(stored)[part]
                    np.testing.assert_array_equal(old[:used, :, 1], new[:used, :, 1])
                    params = (x.cache.classes[part].channels[layer, row].reshape(3, 2, -1) for x in (before, after))
                    same = np.all([a == b for a, b in zip(*params, strict=True)], axis=0)
                    np.testing.assert_array_equal(old[:used, :, 0][:, same], new[:used, :, 0][:, same])
                    grown += int((~same).sum()) if used else 0
    assert grown > 0


@pytest.mark.parametrize("length", [1, 7, 40, 63])
def test_probes(length):
    """The last 5% and as many random ones before them, rounded up, wherever the prompt is padded to."""
    count = -(-length * 5 // 100)
    positions, there = (np.asarray(x)[0] for x in probe_positions(jnp.array([length]), 64))
    newest, random = (positions[half][there[half]] for half in (slice(0, 4), slice(4, 8)))
    assert newest.tolist() == list(range(length - 1, length - 1 - count, -1))
    assert len(random) == (count if length > count else 0) and ((random >= 0) & (random < length - count)).all()
    wide, wide_there = (np.asarray(x)[0] for x in probe_positions(jnp.array([length]), 200))
    assert sorted(wide[wide_there]) == sorted(positions[there])


def test_bytes_of_the_papers_point():
    """70% at 4 bits and 30% at 2: 3.4 bits a number; parameters are two numbers a slot and three a channel."""
    total, config = 32768, CacheConfig(policy="zipcache")
    plan = plan_cache(KVShape(32, 8, 128, "bfloat16"), config, total)
    parts, slots = dict(plan.parts), plan.layout.slots
    assert sum(slots) == total and slots[0] == high_count(total)
    assert parts["codes"] == 32 * 8 * 2 * 128 * (slots[0] * 4 + slots[1] * 2) // 8
    assert parts["slot parameters"] == 32 * 4 * total and parts["channel parameters"] == 32 * 2 * 3 * 2 * 8 * 128
    assert parts["codes"] / plan.full_kv_bytes == pytest.approx(3.4 / 16, rel=1e-4)
    assert 0.2125 < plan.ratio < 0.22
    assert sum(parts.values()) == plan.kv_bytes


def test_placement_and_settings():
    moment = recording("zipcache")[-1]
    found = np.asarray(driver("zipcache").policy.placement(moment.cache))
    for row in range(BATCH):
        stored, length = int(moment.cache.stored[row]), int(moment.cache.length[row])
        wanted = [3] * stored + [4] * (length - stored) + [0] * (found.shape[-1] - length)
        np.testing.assert_array_equal(found[:, row, 0], [wanted, wanted])
    assert policy_options(CacheConfig(policy="zipcache")) == Options(0.7, 4, 2, 100)
    for options, message in (
        ("important=0.705", "important=0.705 must be a whole number of percent"),
        ("important=1", "important=1.0 must lie in 0.01..0.99"),
        ("gap=0", "gap=0 must be an integer >= 1"),
    ):
        with pytest.raises(QEvictError, match=message):
            policy_options(CacheConfig(policy="zipcache", policy_options=options))
