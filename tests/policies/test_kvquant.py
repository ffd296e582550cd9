# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""KVQuant: what is stored of each token, where its calibration comes from, and at how many bytes."""

from dataclasses import replace

import numpy as np
import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.policies import make_policy, plan_cache, policy_options
from qevict_jax.policies.kvquant import Options
from qevict_jax.quantizers.calibration_file import FILE, checkpoint_fingerprint
from qevict_jax.types import KVShape, QEvictError
from tests.coded_contents import kvquant_codes
from tests.float64_model import Float64Model, rotate
from tests.kvquant_calibration import OUTLIERS, calibration
from tests.policies.reference_run import expectations
from tests.recording import BATCH, driver, recording


@pytest.mark.parametrize("name", ["kvquant", "kvquant_bias"])
def test_stored_tokens_are_those_of_the_model(name):
    """Every token of a prompt and every new one: nearest poles of its exact keys and values, or these themselves."""
    model = Float64Model(driver(name).model)
    made, layout = calibration(model.config), driver(name).policy.layout
    center, radius = made.key_range.mean(axis=0), np.ptp(made.key_range, axis=0) / 2
    checked = 0
    for expected in expectations(name):
        if expected.traces is None:
            continue
        cache, row = expected.moment.cache, expected.row
        first = int(cache.length[row]) - len(expected.traces[0].keys)
        at = np.arange(first, int(cache.length[row]))
        for layer, trace in enumerate(expected.traces):
            coded = at >= layout.sink
            keys, values = (x[at[coded] - layout.sink] for x in kvquant_codes(cache, layer, row, model))
            exact = (rotate(trace.keys, -at, model.inv_freq) - model.key_bias(layer))[coded]
            exact_values = trace.values[coded]
            poles = np.sort(np.concatenate([made.key_poles[layout.bits][layer], [-1, 1]]))
            half_gap = np.diff(poles).max() / 2
            # keys rounded to bfloat16 before RoPE was taken off are off by that much more
            slack = {"float32": 1e-3, "bfloat16": 0.2}[driver(name).case.config.kv_dtype]
            beyond = np.maximum(np.abs((exact - center[layer]) / radius[layer]) - 1, 0)  # where not kept exactly
            assert (np.abs(keys - exact) <= (half_gap + beyond) * radius[layer] + slack).all()
            assert (np.abs(values - exact_values) <= half_gap * np.ptp(exact_values, axis=(1, 2), keepdims=True)).all()
            checked += int(coded.sum())
    assert checked > 150


def test_sinks_are_kept_as_they_are_and_codes_written_once():
    moments = recording("kvquant")
    for before, after in zip(moments, moments[1:], strict=False):
        for row in range(BATCH):
            length = int(before.cache.length[row])
            np.testing.assert_array_equal(before.cache.sinks[:, row, :length], after.cache.sinks[:, row, :length])
            used = max(0, length - before.cache.layout.sink)
            for old, new in zip(
                [*before.cache.codes.codes, before.cache.codes.numbers],
                [*after.cache.codes.codes, after.cache.codes.numbers],
                strict=True,
            ):
                np.testing.assert_array_equal(old[:, row, :used], new[:, row, :used])


@pytest.mark.parametrize(("bits", "per_number"), [(2, 2.32), (3, 3.32)])
def test_bytes_of_the_papers_points(bits, per_number):
    """One number in a hundred with 32 bits beside the codes; 11 of 1,024 here, and two numbers of range a token."""
    config = CacheConfig(policy="kvquant", policy_options=f"bits={bits}")
    plan = plan_cache(KVShape(32, 8, 128, "bfloat16"), config, 4096)
    parts, slots = dict(plan.parts), 4095
    assert parts["codes"] == 32 * slots * 2 * 1024 * bits // 8
    assert parts["outliers"] == 32 * slots * 2 * 11 * 4 and parts["value parameters"] == 32 * slots * 4
    bits_each = 8 * (parts["codes"] + parts["outliers"]) / (32 * slots * 2 * 1024)
    assert bits_each == pytest.approx(per_number, abs=0.03)
    assert sum(parts.values()) == plan.kv_bytes and plan.ratio == pytest.approx(bits_each / 16, abs=2e-3)


SHAPE = KVShape(2, 2, 16, "float32")


def test_calibration_is_found_beside_the_model_or_where_it_is_said_to_be(tmp_path):
    config = CacheConfig(policy="kvquant", policy_options=f"outliers={OUTLIERS}")
    with pytest.raises(QEvictError, match="there is no kvquant.safetensors, .* run `qevict calibrate MODEL`"):
        make_policy(SHAPE, config, 50)
    (tmp_path / "config.json").write_text("{}")
    shape = replace(SHAPE, checkpoint=str(tmp_path))
    with pytest.raises(QEvictError, match=f"there is no {tmp_path}/{FILE}, .* run `qevict calibrate {tmp_path}`"):
        make_policy(shape, config, 50)
    made = calibration(driver("kvquant").model.config)
    replace(made, fingerprint=checkpoint_fingerprint(tmp_path)).save(tmp_path / FILE)
    beside = make_policy(shape, config, 50)
    named = make_policy(
        SHAPE, replace(config, policy_options=f"{config.policy_options},calibration={tmp_path / FILE}"), 50
    )
    assert beside.calibration == made and hash(beside) == hash(replace(beside))
    assert named.calibration == made and beside.plan.kv_bytes == named.plan.kv_bytes
    with pytest.raises(QEvictError, match=f"was made for outliers={OUTLIERS}; give that, or run .* --outliers 0.01"):
        make_policy(shape, CacheConfig(policy="kvquant"), 50)


def test_placement_and_settings():
    moment, layout = recording("kvquant")[-1], driver("kvquant").policy.layout
    found = np.asarray(driver("kvquant").policy.placement(moment.cache))
    for row in range(BATCH):
        length = int(moment.cache.length[row])
        wanted = ([5] * layout.sink + [3] * found.shape[-1])[:length] + [0] * (found.shape[-1] - length)
        np.testing.assert_array_equal(found[:, row, 0], [wanted, wanted])
    assert policy_options(CacheConfig(policy="kvquant")) == Options(3, 0.01, 1, "")
    with pytest.raises(QEvictError, match="bits=5 must be one of 2, 3, 4"):
        policy_options(CacheConfig(policy="kvquant", policy_options="bits=5"))
    with pytest.raises(QEvictError, match="indexes the channels of a token with 16 bits; 65792 are too many"):
        plan_cache(KVShape(1, 257, 256, "float32"), CacheConfig(policy="kvquant"), 8)
