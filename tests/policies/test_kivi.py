# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""KIVI: what is quantized when, from which keys and values, and at how many bytes; laws are in `test_laws`."""

import numpy as np
import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.policies import make_policy, plan_cache, policy_options
from qevict_jax.policies.kivi import Options
from qevict_jax.types import KVShape, QEvictError
from tests.coded_contents import half, kivi_groups
from tests.policies.reference_run import expectations
from tests.policy_table import CASES
from tests.recording import BATCH, driver, recording

GROUP, RESIDUAL = 4, 8  # of the row "kivi"


def test_a_row_keeps_less_than_the_residual_after_every_event():
    """Whatever the length of its prompt: between R - g and R - 1 tokens; a row shorter than R keeps all."""
    sizes = set()
    for moment in recording("kivi"):
        recent = moment.cache.length - moment.cache.aged * GROUP
        if moment.kind == "step":
            assert (recent <= moment.cache.layout.ring).all()
            continue
        for length, kept in zip(moment.cache.length, recent, strict=True):
            assert kept == length if length < RESIDUAL else RESIDUAL - GROUP <= kept < RESIDUAL
            sizes.add(int(kept))
    assert sizes >= set(range(RESIDUAL - GROUP, RESIDUAL))


def test_codes_of_a_prompt_are_those_of_its_exact_keys_and_values():
    """Scales are those of the ranges, and no number is off by more than half a step."""
    groups = 0
    for expected in expectations("kivi"):
        cache, row = expected.moment.cache, expected.row
        aged = int(cache.aged[row]) * GROUP
        if expected.moment.kind != "prefill" or not aged:
            continue
        groups += aged // GROUP
        for layer, trace in enumerate(expected.traces):
            found = kivi_groups(cache, layer, row)[:aged]
            heads, head_dim = trace.keys.shape[1:]
            keys = trace.keys[:aged].reshape(-1, GROUP, heads, head_dim)
            values = trace.values[:aged].reshape(aged, heads, -1, GROUP)
            for ours, exact, axis in ((found[:, :, 0], keys, 1), (found[:, :, 1], values, 3)):
                step = np.ptp(exact, axis=axis, keepdims=True) / 15
                slack = 2**-10 * np.abs(exact).max() + 1e-4
                assert (np.abs(ours.reshape(exact.shape) - exact) <= step / 2 + slack).all()
            params = half(cache.codes.key_params[layer, row]).reshape(-1, 2, heads, head_dim)[: aged // GROUP]
            np.testing.assert_allclose(params[:, 0], np.ptp(keys, axis=1) / 15, rtol=2e-3, atol=1e-5)
            np.testing.assert_allclose(params[:, 1], keys.min(axis=1), rtol=2e-3, atol=1e-4)
    assert groups > 15


@pytest.mark.parametrize("name", ["kivi", "kivi_bias"])
def test_codes_are_written_once(name):
    """Slots of groups that have aged keep every bit."""
    grown = 0
    moments = recording(name)
    for before, after in zip(moments, moments[1:], strict=False):
        group = before.cache.layout.options.group_size
        for row in range(BATCH):
            aged = int(before.cache.aged[row])
            grown += int(after.cache.aged[row]) - aged
            for old, new in zip(_leaves(before.cache), _leaves(after.cache), strict=True):
                slots = aged * (1 if old.shape[2] == before.cache.layout.groups else group)
                np.testing.assert_array_equal(old[:, row, :slots], new[:, row, :slots])
    assert grown >= 3


def _leaves(cache):
    return [*cache.codes.codes, cache.codes.key_params, cache.codes.value_params]


@pytest.mark.parametrize(("group", "bytes_per_token"), [(32, 96), (128, 72)])
def test_bytes_of_the_papers_points(group, bytes_per_token):
    """(2 + 32/g)/8 * 2D bytes per token and KV head; beside it the ring, R tokens and a block of steps."""
    config = CacheConfig(policy="kivi", policy_options=f"group_size={group}")
    plan = plan_cache(KVShape(32, 8, 128, "bfloat16"), config, 4096)
    parts = dict(plan.parts)
    coded = dict(plan.capacities)["INT2 tokens"]
    assert coded == 4096 - 128 + group
    assert parts["codes"] + parts["key parameters"] + parts["value parameters"] == 32 * 8 * coded * bytes_per_token
    assert parts["ring"] == 32 * (128 + 8) * 8 * 512
    assert sum(parts.values()) == plan.kv_bytes


def test_a_context_shorter_than_the_residual_has_no_codes():
    plan = plan_cache(KVShape(2, 2, 16, "float32"), CacheConfig(policy="kivi"), 100)
    assert make_policy(KVShape(2, 2, 16, "float32"), plan.config, 100).init(3).codes is None
    assert plan.layout.ring == 100 and plan.ratio == pytest.approx(1.0, abs=1e-3)


def test_points_by_name_and_bad_settings():
    assert policy_options(CacheConfig(policy="kivi")) == Options(bits=2, group_size=32, residual=128)
    for options, message in (
        ("bits=5", "bits=5 must be one of 2, 3, 4"),
        ("group_size=32,residual=100", "residual=100 must be a multiple of group_size=32"),
        ("group_size=0", "group_size=0 must be an integer >= 1"),
    ):
        with pytest.raises(QEvictError, match=message):
            policy_options(CacheConfig(policy="kivi", policy_options=options))
    with pytest.raises(QEvictError, match="no effect with policy='kivi': budget"):
        CacheConfig(policy="kivi", budget=0.2)


def test_placement():
    """Codes up to the ring, in every layer alike."""
    for moment in (recording("kivi")[0], recording("kivi")[-1]):
        found = np.asarray(driver("kivi").policy.placement(moment.cache))
        assert found.shape == (2, BATCH, 1, CASES["kivi"].total_len)
        for row in range(BATCH):
            aged, length = int(moment.cache.aged[row]) * GROUP, int(moment.cache.length[row])
            wanted = [3] * aged + [4] * (length - aged) + [0] * (found.shape[-1] - length)
            np.testing.assert_array_equal(found[:, row, 0], [wanted, wanted])
