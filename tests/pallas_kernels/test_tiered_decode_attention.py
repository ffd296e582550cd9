# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Decode attention over tiers against dense float64 attention over dequantized keys, for every shape of the table."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.tiered_decode_attention.api import tiered_decode_attention
from pallas_kernels.tiered_decode_attention.base import tiered_decode_attention as base
from tests.float64_model import rotate, softmax_attention
from tests.float64_quant import decode
from tests.pallas_kernels.decode_specs import BATCH, LAYER, RING_WINDOWS, SPECS, make_case, static
from tests.quick_compile import QUICK


@cache
def result(name: str, serial: bool):
    """Output and mass of the XLA form."""
    spec = SPECS[name]
    function = jax.jit(partial(base, **static(spec), serial=serial), compiler_options=QUICK)
    return jax.device_get(function(*make_case(spec).arrays()))


@cache
def expected(name: str) -> list:
    """Per sequence: valid queries, their output and the mass by (tier, slot), summed in float64."""
    spec, case = SPECS[name], make_case(SPECS[name])
    return [_dense(spec, case, row) for row in range(BATCH)]


def _dense(spec, case, row):
    tiers = jax.device_get(case.tiers)
    positions, keys, values, owner = [], [], [], []

    def add(at, k, v, tier, slot):
        positions.extend(at)
        keys.extend(k)
        values.extend(v)
        owner.extend([(tier, slot)] * len(at))

    def apart(rows):
        numbers = np.float64(np.float32(rows.view(jnp.dtype(spec.kv_dtype))))
        return np.moveaxis(numbers.reshape(len(rows), spec.K, 2, spec.D), 2, 0)

    ring = RING_WINDOWS * spec.W
    queries = np.flatnonzero(case.q_valid[row])
    newest = case.q_positions[row, queries].max()
    for index, position in enumerate(tiers.local_positions[row]):
        if position <= newest:
            tier = ("ring", index // spec.W) if index < ring else ("sink", 0)
            add([position], *apart(tiers.local[LAYER, row, index : index + 1]), *tier)
    for slot in range(spec.F):
        if tiers.full_valid[row, slot]:
            add([0] * spec.W, *apart(tiers.full[LAYER, row, slot]), "full", slot)
    for slot in range(spec.Q):
        start = tiers.quantized_starts[row, slot]
        if start >= 0:
            stored = jax.tree.map(lambda x, slot=slot: x[LAYER, row, slot], tiers.quantized)
            window = decode(stored.codes, stored.key_params, stored.scalars, spec.W, spec.K, spec.bits)
            bias = 0.0 if case.key_bias is None else np.float64(case.key_bias)
            turned = rotate(window.keys + bias, start + np.arange(spec.W), case.inv_freq)
            add([0] * spec.W, turned, window.values, "quantized", slot)
    mass = {}
    if not positions:
        return queries, np.zeros((len(queries), spec.K * spec.G, spec.D)), mass
    seen = np.array(positions) <= case.q_positions[row, queries][:, None]
    out, weights = softmax_attention(case.q[row, queries], np.stack(keys), np.stack(values), seen)
    for place, received in zip(owner, weights.mean(axis=0).sum(axis=0), strict=True):
        mass[place] = mass.get(place, 0.0) + received
    return queries, out, mass


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("name", SPECS)
def test_output(name, serial):
    out, _ = result(name, serial)
    assert out.dtype == np.float32
    for row, (queries, wanted, _) in enumerate(expected(name)):
        scale = max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(out[row, queries] / scale, wanted / scale, rtol=0, atol=1e-4)


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("name", SPECS)
def test_mass(name, serial):
    """Of every window; all of it together is the number of valid queries."""
    _, mass = result(name, serial)
    for row, (queries, _, wanted) in enumerate(expected(name)):
        found = {("sink", 0): mass.sink[row]}
        for tier in ("ring", "full", "quantized"):
            numbers = getattr(mass, tier)
            found |= {} if numbers is None else {(tier, slot): x for slot, x in enumerate(numbers[row])}
        for place, received in found.items():
            np.testing.assert_allclose(received, wanted.get(place, 0.0), rtol=0, atol=1e-4, err_msg=str(place))
        if wanted:
            np.testing.assert_allclose(sum(found.values()), len(queries), rtol=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_serial_is_vectorized(name):
    ours, theirs = result(name, True), result(name, False)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)


def test_a_query_that_sees_nothing_gets_zeros():
    out, mass = result("none_valid", False)
    np.testing.assert_array_equal(out, 0.0)
    for numbers in jax.tree.leaves(mass):
        np.testing.assert_array_equal(numbers, 0.0)


def test_the_api_takes_the_form_for_a_cpu():
    spec = SPECS["no_full"]
    function = jax.jit(partial(tiered_decode_attention, **static(spec)), compiler_options=QUICK)
    out, _ = function(*make_case(spec).arrays())
    np.testing.assert_array_equal(out, result("no_full", True)[0])


def test_an_absent_tier_is_no_operand():
    """An operand of size zero would abort the TPU compiler."""
    case = make_case(SPECS["only_local"])
    assert all(x.size for x in jax.tree.leaves(case.arrays()))
    assert case.tiers.full is None and case.tiers.quantized is None
