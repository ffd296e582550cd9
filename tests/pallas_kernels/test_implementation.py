# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Which form of an operation runs, and where the choice is made."""

import re

import chex
import jax
import jax.numpy as jnp
import pytest
from jax import export

from pallas_kernels.implementation import IMPLEMENTATIONS, dispatch

FORMS = {"cpu": 2.0, "xla": 3.0, "tpu": 5.0, "gpu": 7.0, "interpret": 11.0}


def run(implementation, **changed):
    forms = {name: (lambda x, factor=factor: x * factor) for name, factor in FORMS.items()} | changed
    return lambda x: dispatch(implementation, (x,), **forms)


def factor_in(implementation, platform, **changed):
    """The factor in a program exported here for another platform."""
    exported = export.export(jax.jit(run(implementation, **changed)), platforms=[platform])(jnp.float32(1))
    factors = [float(x) for x in re.findall(r"dense<([\d.e+]+)> : tensor<f32>", exported.mlir_module())]
    assert len(factors) == 1
    return factors[0]


@pytest.mark.parametrize(
    ("implementation", "expected"), [("auto", 2), ("xla", 2), ("tpu", 5), ("gpu", 7), ("interpret", 11)]
)
def test_here(implementation, expected):
    assert jax.jit(run(implementation))(jnp.float32(1)) == expected


@pytest.mark.parametrize(("platform", "kernel"), [("tpu", 5), ("cuda", 7), ("rocm", 3), ("cpu", 2)])
def test_auto_is_decided_where_the_program_is_lowered(platform, kernel):
    assert factor_in("auto", platform) == kernel
    assert factor_in("xla", platform) == (2 if platform == "cpu" else 3)


def test_auto_takes_xla_where_the_kernel_does_not_take_the_shape():
    assert factor_in("auto", "tpu", tpu="head_dim 7") == 3
    assert factor_in("auto", "cuda", gpu="head_dim 7") == 3
    assert factor_in("auto", "cuda", tpu="head_dim 7") == 7


@pytest.mark.parametrize("name", ["tpu", "gpu", "interpret"])
def test_a_named_kernel_that_does_not_take_the_shape_raises(name):
    with pytest.raises(ValueError, match=f"'{name}' cannot run here: head_dim 7; 'auto' or 'xla' can"):
        run(name, **{name: "head_dim 7"})(jnp.float32(1))


def test_an_unknown_name_raises():
    with pytest.raises(ValueError, match=", ".join(IMPLEMENTATIONS)):
        run("cuda")(jnp.float32(1))


def test_only_the_form_of_the_platform_is_traced():
    def never(x):
        raise AssertionError("traced")

    assert jax.jit(run("auto", tpu=never, gpu=never))(jnp.float32(1)) == FORMS["cpu"]
    assert factor_in("auto", "tpu", cpu=never, gpu=never) == FORMS["tpu"]


def test_auto_without_a_compiler_and_on_trees():
    def form(tree, y):
        return {"sum": tree["x"] + y, "nothing": None}, (y,)

    forms = dict.fromkeys(FORMS, form)
    result = dispatch("auto", ({"x": jnp.arange(3.0), "none": None}, jnp.float32(1)), **forms)
    chex.assert_trees_all_equal(result, ({"sum": jnp.arange(1.0, 4.0), "nothing": None}, (jnp.float32(1),)))
