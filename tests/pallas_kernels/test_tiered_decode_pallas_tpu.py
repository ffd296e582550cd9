# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The TPU kernel in the interpreter against its meaning in XLA, for every shape of the table."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.tiered_decode_attention import base, pallas_tpu
from pallas_kernels.tiered_decode_attention.arg_specs import SPECS, random_args, static_args
from tests.quick_compile import QUICK

# Matrix operands of a bfloat16 cache are rounded to 8 bits of mantissa: of a product of a query channel (standard
# deviation 1.5) and of a key channel's two terms (about 2 in square mean), each term errs by 2^-9 / sqrt(3) in square
# mean. Summed over D channels and scaled by D^-1/2 that is the error of a score: the relative error of a weight.
WEIGHT_ERROR = 1.5 * 2 * 2**-9 / np.sqrt(3)
SIGMAS = 5
# Float32: 2^-24 for each of at most 2 * 256 terms that a score adds, which are up to 100 large in sum.
EXACT = 512 * 100 * 2**-24


@cache
def results(name: str):
    """Arguments, and output and mass of the kernel and of the XLA form."""
    args, static = random_args(SPECS[name]), static_args(SPECS[name])

    def run(function, **more):
        return jax.device_get(jax.jit(partial(function, **static, **more), compiler_options=QUICK)(*args))

    kernel = run(pallas_tpu.tiered_decode_attention, interpret=True)
    return args, kernel, run(base.tiered_decode_attention)


def tolerance(name: str) -> float:
    return SIGMAS * WEIGHT_ERROR if SPECS[name].kv_dtype == "bfloat16" else EXACT


@pytest.mark.parametrize("name", SPECS)
def test_output(name):
    """What is not valid holds NaN, so finite numbers also show that nothing of it leaks."""
    args, (out, _), (wanted, _) = results(name)
    valid = np.asarray(args[2])
    assert out.dtype == np.float32 and out.shape == wanted.shape
    scale = max(1.0, np.abs(wanted[valid]).max())
    np.testing.assert_allclose(out[valid], wanted[valid], rtol=0, atol=tolerance(name) * scale)


@pytest.mark.parametrize("name", SPECS)
def test_mass_of_every_window(name):
    _, (_, mass), (_, wanted) = results(name)
    assert [x is None for x in mass] == [x is None for x in wanted]
    for ours, theirs in zip(jax.tree.leaves(mass), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance(name), atol=tolerance(name))


@pytest.mark.parametrize("name", [name for name in SPECS if not SPECS[name].empty])
def test_all_mass_is_the_number_of_valid_queries(name):
    args, (_, mass), _ = results(name)
    total = sum(np.asarray(x).reshape(len(x), -1).sum(axis=1) for x in jax.tree.leaves(mass))
    np.testing.assert_allclose(total, np.asarray(args[2]).sum(axis=1), rtol=1e-5)


def test_a_query_that_sees_nothing_gets_zeros():
    _, (out, mass), _ = results("none_valid")
    np.testing.assert_array_equal(out, 0.0)
    for numbers in jax.tree.leaves(mass):
        np.testing.assert_array_equal(numbers, 0.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"kv_heads": 3}, "no multiple"), ({"bits": 5}, "no bit layout"), ({"kv_dtype": "float64"}, "kv_dtype")],
)
def test_shapes_it_does_not_take(change, reason):
    spec = SPECS["no_codes"]
    with pytest.raises(ValueError, match=reason):
        pallas_tpu.tiered_decode_attention(*random_args(spec), **static_args(spec) | change, interpret=True)


def test_more_queries_than_a_window():
    spec = SPECS["no_codes"]
    q, q_positions, q_valid, *rest = random_args(spec)
    q, q_positions, q_valid = (jnp.repeat(x, 5, axis=1) for x in (q, q_positions, q_valid))
    with pytest.raises(ValueError, match="10 query tokens"):
        pallas_tpu.tiered_decode_attention(q, q_positions, q_valid, *rest, **static_args(spec), interpret=True)
