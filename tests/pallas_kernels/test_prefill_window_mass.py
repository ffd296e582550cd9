# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Start mass of prompt windows against an explicit S x S softmax, and the kernels against float64."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import export

from pallas_kernels.prefill_window_mass import base, pallas_gpu, pallas_tpu
from pallas_kernels.prefill_window_mass.api import prefill_window_mass
from pallas_kernels.prefill_window_mass.arg_specs import SPECS, MassSpec, abstract_args, random_args, static_args
from qevict_jax.attention import causal_attention, start_mass
from tests.float64_model import softmax_attention
from tests.quick_compile import QUICK

S, H, K, D = 45, 6, 2, 16
LENGTHS = np.array([45, 20, 7, 1, 0], np.int32)


@pytest.fixture(scope="module")
def prompt():
    """q, k, v of prompts padded on the right; padding is large, so that it shows if it counts."""
    random = np.random.default_rng(3)
    q, k, v = (np.float32(random.normal(size=(len(LENGTHS), S, heads, D))) for heads in (H, K, K))
    padding = np.arange(S) >= LENGTHS[:, None]
    return tuple(np.where(padding[..., None, None], 5.0 * x, x).astype(np.float32) for x in (2 * q, k, v))


@pytest.fixture(scope="module")
def attended(prompt):
    q, k, v = prompt
    return q, k, v, *jax.jit(causal_attention)(q, k, v)


SEVEN_QUERIES = 4 * len(LENGTHS) * H * S * 7  # bytes of a block


@pytest.mark.parametrize(
    ("mode", "window", "sink", "block_bytes"),
    [
        ("all", 8, 5, base._BLOCK_BYTES),
        ("all", 4, 0, SEVEN_QUERIES),
        ("mean", 8, 5, SEVEN_QUERIES),
        ("mean", 4, 0, base._BLOCK_BYTES),
        ("last:8", 8, 5, SEVEN_QUERIES),
        ("last:100", 8, 5, base._BLOCK_BYTES),
    ],
)
def test_against_an_explicit_softmax(attended, mode, window, sink, block_bytes, monkeypatch):
    """Whole, and in blocks of seven queries."""
    monkeypatch.setattr(base, "_BLOCK_BYTES", block_bytes)
    q, k, v, _, lse = attended
    last = int(mode.split(":")[1]) if mode.startswith("last") else None
    function = partial(start_mass, prefill_scores=mode, last_queries=last, window=window, sink=sink)
    ours = np.asarray(jax.jit(function, compiler_options=QUICK)(q, k, lse, LENGTHS))
    assert ours.shape == (len(LENGTHS), -(-(S - sink) // window))
    for row, n in enumerate(LENGTHS):
        wanted = np.zeros(ours.shape[1])
        if n:
            causal = np.tril(np.ones((n, n), bool))
            _, weights = softmax_attention(q[row, :n], k[row, :n], v[row, :n], causal)
            by_query = weights.mean(axis=0)
            if last is not None:
                by_query = by_query[-last:]
            by_token = by_query.sum(axis=0)
            if mode == "mean":
                by_token = by_token / np.arange(n, 0, -1)
            for position in range(sink, n):
                wanted[(position - sink) // window] += by_token[position]
        np.testing.assert_allclose(ours[row], wanted, rtol=1e-4, atol=1e-5)


def test_all_queries_together_give_their_number(attended):
    """Without sinks every bit of mass is in some window."""
    q, k, _, _, lse = attended
    mass = start_mass(
        *(jax.numpy.asarray(x) for x in (q, k, lse, LENGTHS)),
        prefill_scores="all",
        last_queries=None,
        window=4,
        sink=0,
    )
    np.testing.assert_allclose(mass.sum(axis=1), LENGTHS, rtol=1e-5)


def test_a_prompt_shorter_than_the_sinks(attended):
    """There is one window, and it is empty."""
    q, k, _, _, lse = attended
    mass = jax.jit(partial(start_mass, prefill_scores="all", last_queries=None, window=8, sink=50))(q, k, lse, LENGTHS)
    np.testing.assert_array_equal(mass, np.zeros((len(LENGTHS), 1)))


def float64_mass(spec: MassSpec, args: tuple) -> tuple[np.ndarray, float]:
    """The mass of every window, query by query, and by how much float32 may change one weight, relative to it."""
    q, keys, lse, positions, valid, weight = (np.asarray(x) for x in args)
    mass = np.zeros((spec.B, max(1, -(-(spec.S - spec.sink) // spec.W))))
    largest = 0.0
    for row, query in zip(*np.nonzero(valid), strict=True):
        seen = positions[row, query] + 1
        for head in range(spec.K * spec.G):
            products = np.float64(keys[row, :seen, head // spec.G]) * np.float64(q[row, query, head])
            logits = products.sum(axis=-1) / spec.D**0.5
            largest = max(largest, (np.abs(products).sum(axis=-1) / spec.D**0.5).max(), abs(lse[row, query, head]))
            weights = np.exp(logits - lse[row, query, head]) * weight[row, :seen] / (spec.K * spec.G)
            for window in range(len(mass[row])):
                start = spec.sink + window * spec.W
                mass[row, window] += weights[start : start + spec.W].sum()
    epsilon = np.finfo(np.float32).eps
    # sums of D products, scaling, subtraction, exp, all of numbers up to `largest`; then sums over queries and tokens
    return mass, epsilon * (largest * (spec.D**0.5 + 4) + spec.N * spec.W)


@pytest.mark.parametrize("name", SPECS)
def test_every_form_against_float64(name):
    """NaN stands in padding, in queries that do not count and in their log-sum-exps."""
    spec = SPECS[name]
    args = random_args(spec)
    wanted, tolerance = float64_mass(spec, args)
    forms = {
        "base": base.prefill_window_mass,
        "tpu": partial(pallas_tpu.prefill_window_mass, interpret=True),
        "gpu": partial(pallas_gpu.prefill_window_mass, interpret=True),
    }
    for form, function in forms.items():
        ours = jax.jit(partial(function, **static_args(spec)), compiler_options=QUICK)(*args)
        np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=1e-30, err_msg=form)


def test_names_pick_the_form():
    """The interpreted kernel for TPU, by name; what an implementation does not know raises."""
    spec = SPECS["no_sink"]
    args = random_args(spec)
    np.testing.assert_array_equal(
        prefill_window_mass(*args, **static_args(spec), implementation="interpret"),
        pallas_tpu.prefill_window_mass(*args, **static_args(spec), interpret=True),
    )
    with pytest.raises(ValueError, match="implementation='mosaic' must be one of"):
        prefill_window_mass(*args, **static_args(spec), implementation="mosaic")


def test_auto_takes_the_kernel_of_the_platform_that_a_program_is_lowered_for():
    """Exported on this CPU for an NVIDIA GPU."""
    spec = SPECS["G5_float16"]
    names = ("__gpu$xla.gpu.triton", "triton_kernel_call")
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in names]
    function = jax.jit(partial(prefill_window_mass, **static_args(spec)))
    program = export.export(function, platforms=["cuda"], disabled_checks=checks)(*abstract_args(spec)).mlir_module()
    assert sum(program.count(f"@{name}(") for name in names) == 1
