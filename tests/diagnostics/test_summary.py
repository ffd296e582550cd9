# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Means over traces, and Appendix K's paired differences."""

import numpy as np

from qevict_jax.diagnostics.conditions import promotion_conditions
from qevict_jax.diagnostics.measure import Measures
from qevict_jax.diagnostics.promotion import compare_promotion, paired_difference
from qevict_jax.diagnostics.summary import by_layer_and_head, estimate, per_trace, summarize
from tests.diagnostics.synthetic import LAYERS, WINDOW, synthetic_diagnosis

NAN = float("nan")


def article(*layers):
    return Measures(np.arange(2), missed=[np.array(layer) for layer in layers])


def test_a_trace_is_a_layer_of_an_article():
    # two events of two heads in each of two layers, one event without a future
    articles = [
        article([[0.1, 0.3], [NAN, NAN]], [[0.2, 0.2], [0.4, 0.4]]),
        article([[NAN, NAN]] * 2, [[0.0, 0.0]] * 2),
    ]
    traces = per_trace(articles, lambda x: x.missed)
    np.testing.assert_allclose(traces, [0.2, 0.3, NAN, 0.0])
    found = estimate(traces)
    assert found.traces == 3
    np.testing.assert_allclose([found.mean, found.deviation], [0.5 / 3, np.std([0.2, 0.3, 0.0], ddof=1)])
    heads = by_layer_and_head(articles, lambda x: x.missed)
    np.testing.assert_allclose(heads, [[0.1, 0.3], [0.15, 0.15]])


def test_no_trace_has_no_mean():
    assert np.isnan(estimate(np.array([NAN])).mean) and estimate(np.array([NAN])).traces == 0


def test_a_paired_difference_is_surer_than_its_parts():
    random = np.random.default_rng(0)
    trace = random.normal(0, 1, 200)
    found = paired_difference(trace + 0.1 + random.normal(0, 0.01, 200), trace)
    assert found.traces == 200 and abs(found.mean - 0.1) < 0.003
    assert found.low < found.mean < found.high and found.high - found.low < 0.005
    assert paired_difference(np.array([1.0, NAN]), np.array([0.5, 0.0])).traces == 1


def test_conditions_are_compared_with_the_first():
    diagnosis = synthetic_diagnosis(promotion_conditions())
    found = compare_promotion(diagnosis)
    assert not found["one-way"].differences
    means = {name: diagnosis.summaries[name].missed.mean for name in found}
    difference = found["ranked"].differences["missed"]
    assert difference.traces == 2 * LAYERS
    np.testing.assert_allclose(difference.mean, means["ranked"] - means["one-way"])
    moved = sum(int(layer.promotions.sum()) for x in diagnosis.measures for layer in x["ranked"].moves)
    assert moved and found["ranked"].transitions == moved // WINDOW


def test_summaries_count_traces():
    diagnosis = synthetic_diagnosis(promotion_conditions())
    found = summarize([x["exact"] for x in diagnosis.measures])
    assert found.missed.traces == 2 * LAYERS and found.policy[1].traces == 2 * LAYERS
    rates = [found.policy[m].eligible for m in (1, 2, 3, 4, 8)]
    assert rates == sorted(rates, reverse=True)
    for chances in found.policy_lags.values():
        total = chances.sum(axis=1)
        np.testing.assert_allclose(total[~np.isnan(total)], 1.0)
