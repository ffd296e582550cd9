# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics put together: properties of the paper's definitions, and each metric against its function."""

import numpy as np
import pytest

from qevict_jax.diagnostics.measure import SPANS, Observed, measure
from qevict_jax.diagnostics.missed_mass import future_missed_mass
from qevict_jax.diagnostics.selection import windows_of
from qevict_jax.diagnostics.tier_mass import SHARED
from qevict_jax.policies.base import Tier
from tests.diagnostics.synthetic import (
    HEADS,
    LAYERS,
    PREFILL,
    SINK,
    STEPS,
    WINDOW,
    synthetic_reference,
    synthetic_trace,
)


def measured(trace, every=1, oracle=3):
    return measure(synthetic_reference(every=every), {"a": Observed(trace, SINK, WINDOW, oracle)})["a"]


def reference_mass():
    """What each window received in each interval, mean over heads, ``[E-1, L, windows]``."""
    sums = synthetic_reference().step_mass.mean(axis=2).reshape(LAYERS, STEPS // WINDOW, WINDOW, -1).sum(axis=2)
    return np.swapaxes(windows_of(sums, SINK, WINDOW), 0, 1).astype(np.float32)


def test_keeping_everything_misses_nothing_and_never_returns():
    found = measured(synthetic_trace(0, (Tier.FULL,)))
    assert not np.nan_to_num(np.stack(found.missed)).any()
    assert not found.missed_without_codes
    assert all(len(x.length) == 0 for x in found.policy.episodes)


def test_hiding_the_quantized_tier_is_losing_it():
    trace = synthetic_trace(1)
    found = measured(trace)
    for layer in range(LAYERS):
        lost = np.isin(trace.placement[:, layer], [Tier.EVICTED, Tier.QUANTIZED])
        mass = synthetic_reference().mass(layer)
        expected = future_missed_mass(mass, lost, trace.events, prefill=PREFILL)
        np.testing.assert_array_equal(found.missed_without_codes[layer], expected)
    assert (np.stack(found.missed_without_codes)[:, :-1] > np.stack(found.missed)[:, :-1]).all()
    assert np.stack(found.missed).shape == (LAYERS, STEPS // WINDOW + 1, HEADS)


@pytest.mark.parametrize("kind", ["shares", "decode_shares"])
def test_tier_masses_add_up_to_one(kind):
    for layer in getattr(measured(synthetic_trace(2)), kind):
        total = np.sum([layer[tier] for tier in SHARED], axis=0)
        first = 1 if kind == "decode_shares" else 0  # nothing is decoded before the first event
        np.testing.assert_allclose(total[first:], 1.0, rtol=1e-12)
        assert np.isnan(total[:first]).all()


def test_the_references_own_scores_agree_with_themselves():
    found = measured(synthetic_trace(3, mass=reference_mass()))
    for span in SPANS:
        agreement, ratio = np.stack(found.agreement[span]), np.stack(found.ratio[span])
        there = ~np.isnan(agreement)
        assert there.any()
        np.testing.assert_allclose(agreement[there], 1.0, rtol=1e-5)
        np.testing.assert_allclose(ratio[there], 1.0, rtol=1e-5)


def test_half_the_mass_is_half_the_ratio_in_decoding_and_more_with_the_prompt():
    found = measured(synthetic_trace(3, mass=reference_mass() / 2))
    for span in ("decoding", "interval"):
        ratio = np.stack(found.ratio[span])
        np.testing.assert_allclose(ratio[~np.isnan(ratio)], 0.5, rtol=1e-5)
    ratio = np.stack(found.ratio["cumulative"])
    assert (ratio[~np.isnan(ratio)] > 0.5).all()


def test_sums_of_steps_change_nothing():
    one, four = measured(synthetic_trace(4)), measured(synthetic_trace(4), every=4)
    for name in ("missed", "missed_without_codes"):
        np.testing.assert_allclose(np.stack(getattr(one, name)), np.stack(getattr(four, name)), rtol=1e-5)
    np.testing.assert_allclose(one.agreement["decoding"], four.agreement["decoding"], rtol=1e-5)


def test_a_placement_per_kv_head_is_shared_by_its_query_heads():
    trace = synthetic_trace(5)
    per_head = np.repeat(trace.placement, 2, axis=2)
    per_head[:, :, 1] = synthetic_trace(6).placement[:, :, 0]
    found = measured(type(trace)(per_head, WINDOW))
    for layer in range(LAYERS):
        missed = [
            future_missed_mass(
                synthetic_reference().mass(layer)[:, head : head + 1],
                per_head[:, layer, head // 2][:, None] == Tier.EVICTED,
                trace.events,
                prefill=PREFILL,
            )
            for head in range(HEADS)
        ]
        np.testing.assert_array_equal(found.missed[layer], np.concatenate(missed, axis=1))
    assert len(found.policy.episodes) == 2 * LAYERS and len(found.oracle.episodes) == LAYERS
