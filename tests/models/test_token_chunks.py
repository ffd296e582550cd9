# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Long prompts: chunks change no result, and memory is linear in the prompt and knows nothing of the depth."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.models import steps, token_chunks
from qevict_jax.models.steps import Program, abstract_params
from qevict_jax.models.token_chunks import over_tokens
from qevict_jax.policies import make_policy
from tests.quick_compile import QUICK
from tests.random_model import random_model
from tests.shapes import SMOLLM2


@pytest.mark.parametrize("size", [5, 21])
@pytest.mark.parametrize("batch", [1, 3])
def test_each_token_once(monkeypatch, batch, size):
    """Whatever the remainder and the rows that share a chunk."""
    monkeypatch.setattr(token_chunks, "CHUNK", 8)
    monkeypatch.setattr(token_chunks, "TILE", 4)
    chunks = []

    def function(weight, results, x):
        chunks.append(x.shape)
        total, count = results
        return total * 2 + weight * x[..., 0], count + 1

    x = jax.random.normal(jax.random.key(0), (batch, size, 3))
    zeros = jnp.zeros((batch, size), jnp.int32)
    total, count = over_tokens(lambda turn: jnp.float32(3), function, (x[..., 1], zeros), x)
    np.testing.assert_array_equal(count, 1)
    np.testing.assert_array_equal(total, x[..., 1] * 2 + 3 * x[..., 0])
    assert all(shape[1] <= 8 for shape in chunks)
    assert len(chunks) == 1 or size > 4


def test_a_prompt_in_chunks_is_the_prompt(monkeypatch):
    model = random_model("bias")
    policy = make_policy(model.config.kv_shape("float32"), CacheConfig.full("float32"), 96)
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, 64, (2, 76), dtype=np.int32))
    length = jnp.array([76, 31], jnp.int32)

    def read() -> tuple:
        function = jax.jit(lambda *a: steps.prefill(model.program, model.params, policy, *a), compiler_options=QUICK)
        return function(tokens, length)

    whole = read()
    monkeypatch.setattr(token_chunks, "CHUNK", 32)
    monkeypatch.setattr(token_chunks, "TILE", 16)
    for ours, theirs in zip(jax.tree.leaves(read()), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)  # products of other sizes round otherwise


def temporary_bytes(layers: int, size: int) -> int:
    """Bytes beside arguments and results of the prompt pass of SmolLM2 with so many layers."""
    config = dataclasses.replace(SMOLLM2, layers=layers)
    policy = make_policy(config.kv_shape("float32"), CacheConfig.tuned(kv_dtype="float32"), size, platform="cpu")
    program, params = Program.of(config), abstract_params(config, "float32")
    tokens, length = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((1, size), (1,)))
    function = jax.jit(lambda params, *a: steps.prefill(program, params, policy, *a), compiler_options=QUICK)
    return function.lower(params, tokens, length).compile().memory_analysis().temp_size_in_bytes


def test_memory_is_linear_in_the_prompt_and_blind_to_the_depth():
    """A token more takes its rows of one layer, and nothing of the MLP's width; a layer more takes nothing."""
    short, long, deep = temporary_bytes(2, 16384), temporary_bytes(2, 32768), temporary_bytes(30, 16384)
    # residual stream, queries and output; keys and values as projected, for attention, and in the cache's order
    row = 4 * (3 * SMOLLM2.hidden + 6 * SMOLLM2.kv_heads * SMOLLM2.head_dim)
    assert (long - short) / 16384 <= 1.1 * row
    assert long <= 2 * short
    assert deep <= 1.001 * short
