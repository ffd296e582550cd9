# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`CacheConfig.implementation` reaches every form of attention: prompt pass, start scores and decoding."""

import dataclasses

import chex
import jax
import numpy as np
import pytest
from jax import export

from qevict_jax.decoding import Decoder
from qevict_jax.models import steps
from qevict_jax.sampling import Filters, Sampling
from tests.policy_table import CASES
from tests.recording import make_driver, some_tokens

CASE = dataclasses.replace(CASES["exact_bfloat16"], model="bias")


def with_implementation(name):
    return make_driver(dataclasses.replace(CASE, config=dataclasses.replace(CASE.config, implementation=name)))


@pytest.mark.slow
def test_the_interpreted_kernels_give_what_xla_gives():
    results = []
    for name in ("xla", "interpret"):
        made = with_implementation(name)
        tokens = some_tokens(made.case, 1)
        size = made.case.prompt
        _, cache = made.prefill(tokens[:, :size], np.array([size, 40, 9, 0], np.int32))
        start = cache.score
        logits, cache = made.step(cache, tokens[:, size:][:, :1], np.array([1, 1, 1, 0], np.int32))
        results.append((logits[:3], start, cache.score))
    chex.assert_trees_all_close(*results, rtol=2e-2, atol=2e-2)
    assert not np.array_equal(results[0][0], results[1][0])  # two programs, to the rounding of bfloat16 operands


@pytest.mark.parametrize(("name", "kernels"), [("auto", ("splash", "prefill_window_mass")), ("xla", ())])
def test_a_program_exported_here_holds_the_kernels_of_its_platform(name, kernels):
    made = with_implementation(name)
    decoder = Decoder(made.model.program, made.policy, Filters.of(Sampling()), (), 0)
    batch = 2
    tokens, length = (jax.ShapeDtypeStruct(shape, np.int32) for shape in ((batch, made.case.prompt), (batch,)))
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in ("tpu_custom_call", "LayoutConstraint")]
    read = export.export(jax.jit(decoder.read), platforms=["tpu"], disabled_checks=checks)
    text = read(made.model.params, tokens, length).mlir_module()
    assert all(kernel in text for kernel in kernels)
    assert ("tpu_custom_call" in text) == bool(kernels)

    def step(params, cache, tokens, count):
        return steps.step(made.model.program, params, made.policy, cache, tokens, count)

    cache = jax.eval_shape(lambda: made.policy.init(batch))
    step_text = export.export(jax.jit(step), platforms=["tpu"], disabled_checks=checks)(
        made.model.params, cache, jax.ShapeDtypeStruct((batch, 1), np.int32), length
    ).mlir_module()
    assert ("tiered_decode_attention" in step_text and "tpu_custom_call" in step_text) == bool(kernels)
