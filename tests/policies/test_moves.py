# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in the slots: codes are written once, from the right tokens, and full windows stay as they were."""

import numpy as np
import pytest

from tests import float64_quant
from tests.float64_model import Float64Model, rotate
from tests.policy_table import CASES, TIERED
from tests.recording import BATCH, driver, recording
from tests.tier_contents import (
    code_row,
    decoded,
    full_tokens,
    restored,
    ring_tokens,
    slots,
    window_positions,
)

LAYERS = 2
STORED = {"float32": 1e-4, "bfloat16": 2**-7, "float16": 2**-10}


def rows_and_layers(name):
    return [(row, layer) for row in range(BATCH) for layer in range(LAYERS) if recording(name)[0].count[row]]


def events(name):
    """(cache before, cache after) of every routing event."""
    moments = recording(name)
    return [(a.cache, b.cache) for a, b in zip(moments, moments[1:], strict=False) if b.kind == "route"]


@pytest.mark.parametrize("name", TIERED)
def test_codes_are_written_once(name):
    """Not one bit of a window's codes changes while it lives, through promotions and demotions, nor its slot."""
    for row, layer in rows_and_layers(name):
        first = {}
        for moment in recording(name):
            at = slots(moment.cache, layer, row)
            for window, slot in (at.codes | at.dormant).items():
                stored = (slot, code_row(moment.cache, layer, row, slot))
                assert first.setdefault(window, stored) == stored, (row, layer, window)
            for window in set(first) - set(at.codes) - set(at.dormant):
                assert window not in at.full, "a promoted window lost its codes"


@pytest.mark.parametrize("name", TIERED)
def test_full_windows_never_change(name):
    for row, layer in rows_and_layers(name):
        before = {}
        for moment in recording(name):
            at = slots(moment.cache, layer, row)
            now = {w: (slot, full_tokens(moment.cache, layer, row, slot).tobytes()) for w, slot in at.full.items()}
            for window in set(before) & set(now):
                assert before[window] == now[window], (row, layer, window)
            before = now


@pytest.mark.parametrize("name", TIERED)
def test_windows_arrive_with_the_right_tokens(name):
    """Demoted ones as their quantization, from ring or full slot; promoted ones dequantized; new ones as they were."""
    config, model = CASES[name].config, Float64Model(driver(name).model)
    for before, after in events(name):
        for row, layer in rows_and_layers(name):
            old, new = slots(before, layer, row), slots(after, layer, row)
            for window, slot in new.codes.items():
                if window in old.codes or window in old.dormant:
                    continue
                positions = window_positions(after.layout, window)
                if window in old.full:
                    tokens = full_tokens(before, layer, row, old.full[window])
                else:
                    tokens = ring_tokens(before, layer, row, positions)
                keys = rotate(tokens[:, :, 0], -positions, model.inv_freq) - model.key_bias(layer)
                wanted = float64_quant.quantize(keys, tokens[:, :, 1], config.bits, config.param_bits)
                assert_same_codes(decoded(after, layer, row, slot), wanted)
            for window, slot in new.full.items():
                if window in old.full:
                    continue
                positions = window_positions(after.layout, window)
                ours = full_tokens(after, layer, row, slot)
                if window in old.codes:
                    wanted = restored(decoded(before, layer, row, old.codes[window]), layer, positions, model)
                    tolerance = STORED[config.kv_dtype]
                    np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance)
                else:
                    np.testing.assert_array_equal(ours, ring_tokens(before, layer, row, positions))


@pytest.mark.parametrize("name", TIERED)
def test_prefill_stores_the_prompt(name):
    """Of the first row: full windows and quantized windows hold the keys and values of their positions."""
    config, model, moment = CASES[name].config, Float64Model(driver(name).model), recording(name)[0]
    _, traces = model.run(moment.tokens[0, : moment.count[0]])
    for layer in range(LAYERS):
        at = slots(moment.cache, layer, 0)
        tokens = np.stack([traces[layer].keys, traces[layer].values], axis=2)
        for window, slot in at.full.items():
            positions = window_positions(moment.cache.layout, window)
            tolerance = STORED[config.kv_dtype]
            ours = full_tokens(moment.cache, layer, 0, slot)
            np.testing.assert_allclose(ours, tokens[positions], rtol=tolerance, atol=tolerance)
        for window, slot in at.codes.items():
            positions = window_positions(moment.cache.layout, window)
            keys = rotate(tokens[positions, :, 0], -positions, model.inv_freq) - model.key_bias(layer)
            wanted = float64_quant.quantize(keys, tokens[positions, :, 1], config.bits, config.param_bits)
            assert_same_codes(decoded(moment.cache, layer, 0, slot), wanted)


def assert_same_codes(ours, wanted):
    """Equal but for what float32 may round the other way: a code by one, a parameter by one step of its storage."""
    for our_codes, codes in ((ours.key_codes, wanted.key_codes), (ours.value_codes, wanted.value_codes)):
        assert np.abs(our_codes - codes).max() <= 1
        assert np.mean(our_codes != codes) < 0.02
    step = 2**-7
    for part in ("key_scale", "key_offset", "value_scale", "value_offset"):
        got, want = getattr(ours, part), getattr(wanted, part)
        np.testing.assert_allclose(got, want, rtol=step, atol=step * np.abs(want).max(), err_msg=part)
