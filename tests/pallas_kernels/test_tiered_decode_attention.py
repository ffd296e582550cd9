# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Decode attention over tiers against dense float64 attention over dequantized keys, for every shape of the table."""

from functools import cache, partial

import chex
import jax
import numpy as np
import pytest

from pallas_kernels.tiered_decode_attention.api import tiered_decode_attention
from pallas_kernels.tiered_decode_attention.arg_specs import SPECS, abstract_args, random_args, static_args
from pallas_kernels.tiered_decode_attention.base import tiered_decode_attention as base
from tests.pallas_kernels.dense_tiers import assert_matches
from tests.quick_compile import QUICK


@cache
def result(name: str, serial: bool):
    """Output and mass of the XLA form."""
    spec = SPECS[name]
    function = jax.jit(partial(base, **static_args(spec), serial=serial), compiler_options=QUICK)
    return jax.device_get(function(*random_args(spec)))


@pytest.mark.parametrize("serial", [True, False])
@pytest.mark.parametrize("name", SPECS)
def test_output_and_mass(name, serial):
    assert_matches(name, *result(name, serial), tolerance=1e-4)


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
    function = jax.jit(partial(tiered_decode_attention, **static_args(spec)), compiler_options=QUICK)
    out, _ = function(*random_args(spec))
    np.testing.assert_array_equal(out, result("no_full", True)[0])


def test_an_absent_tier_is_no_operand():
    """An operand of size zero would abort the TPU compiler."""
    for make in (abstract_args, random_args):
        arguments = make(SPECS["only_local"])
        assert all(x.size for x in jax.tree.leaves(arguments))
        assert arguments[3].full is None and arguments[3].quantized is None


@pytest.mark.parametrize("name", SPECS)
def test_abstract_and_random_arguments_agree(name):
    wanted, made = abstract_args(SPECS[name]), random_args(SPECS[name])
    chex.assert_trees_all_equal_structs(wanted, made)
    chex.assert_trees_all_equal_shapes_and_dtypes(wanted, made)
