# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The functions that models run as: their results are laws of the policies; here what they cost and what they trace."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.cache import nbytes
from qevict_jax.config import CacheConfig
from qevict_jax.decoding import Decoder
from qevict_jax.models import steps
from qevict_jax.models.config import NAMED_SHAPES
from qevict_jax.models.steps import Program, abstract_params
from qevict_jax.policies import make_policy
from qevict_jax.sampling import Filters, Numbers, Sampling
from tests.float64_model import Float64Model
from tests.random_model import CONFIGS, random_model
from tests.shapes import SMOLLM2


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        (CacheConfig.tuned(kv_dtype="float32"), 4),
        (CacheConfig.tuned(kv_dtype="bfloat16"), 1),
        (CacheConfig.tuned(kv_dtype="bfloat16", quant_fraction=0.0), 4),
        (CacheConfig.paper(budget=0.2, kv_dtype="float16"), 4),
        (CacheConfig(policy="kivi"), 4),
        (CacheConfig(policy="zipcache"), 1),
    ],
    ids=["tuned", "tuned_bfloat16", "two_tiers_bfloat16", "paper_float16", "kivi", "zipcache"],
)
def test_decoding_needs_little_memory_beside_the_cache(config, batch):
    """A fifth of 4,352 tokens: less than one layer of the full cache in float32, plus activations.

    The whole loop of generation is compiled, steps and events. Activations are what one layer makes of one token, the
    logits, and the layer's weights, which XLA:CPU slices out of the stack.
    """
    total = 4352
    policy = make_policy(SMOLLM2.kv_shape(config.kv_dtype), config, total, platform="cpu")
    params = abstract_params(SMOLLM2, "float32")
    decoder = Decoder(Program.of(SMOLLM2), policy, Filters.of(Sampling()), eos=(0,), capacity=256)
    cache = jax.eval_shape(lambda: policy.init(batch))
    logits = jax.ShapeDtypeStruct((batch, SMOLLM2.vocab), jnp.float32)
    active, limit = (jax.ShapeDtypeStruct((batch,), dtype) for dtype in (jnp.bool_, jnp.int32))
    numbers = jax.eval_shape(lambda: Numbers.of(Sampling()))
    state = jax.eval_shape(decoder.begin, params, cache, logits, active, limit, numbers)
    memory = jax.jit(decoder.run, donate_argnums=1).lower(params, state, numbers).compile().memory_analysis()

    one_layer = total * batch * 2 * SMOLLM2.kv_heads * SMOLLM2.head_dim * 4
    weights = nbytes(params["blocks"]) // SMOLLM2.layers
    activations = 4 * batch * (2 * SMOLLM2.vocab + 16 * SMOLLM2.mlp)
    assert memory.temp_size_in_bytes < one_layer + weights + activations
    assert memory.alias_size_in_bytes >= batch * policy.plan.kv_bytes  # donated, not copied


@pytest.mark.parametrize("residency", ["exact", "ranked"])
@pytest.mark.parametrize("name", NAMED_SHAPES)
def test_models_of_8b_trace(name, residency):
    """Prefill of 8,192 tokens, a step, a chunk and an event, with shapes alone."""
    model = dataclasses.replace(NAMED_SHAPES[name], dtype="bfloat16")
    config = CacheConfig.tuned(budget=0.1, residency=residency, quant_fraction=0.9)
    policy = make_policy(model.kv_shape("bfloat16"), config, 8192 + 256, platform="cpu")
    program, params = Program.of(model), abstract_params(model, "bfloat16")

    def ints(*axes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(axes, jnp.int32)

    prefill = jax.eval_shape(lambda p, *a: steps.prefill(program, p, policy, *a), params, ints(2, 8192), ints(2))
    logits, cache = prefill
    assert logits.shape == (2, model.vocab) and logits.dtype == jnp.float32
    assert nbytes(cache) == 2 * policy.plan.kv_bytes
    for count in (1, policy.event_steps):
        logits, after = jax.eval_shape(
            lambda p, *a: steps.step(program, p, policy, *a), params, cache, ints(2, count), ints(2)
        )
        assert logits.shape == (2, model.vocab)
        same_shapes(after, cache)
    routed = jax.eval_shape(lambda p, c: steps.route(program, p, policy, c), params, cache)
    same_shapes(routed, cache)


def same_shapes(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    shapes = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (ours, theirs)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", CONFIGS)
def test_all_logits(name):
    """Against float64, at any positions, and independent of padding behind."""
    model = random_model(name)
    tokens = np.random.default_rng(1).integers(0, model.config.vocab, (2, 30), dtype=np.int32)
    function = jax.jit(lambda tokens: steps.all_logits(model.program, model.params, tokens))
    ours = function(tokens)
    reference = Float64Model(model)
    for row in range(2):
        np.testing.assert_allclose(ours[row], reference.run(tokens[row])[0], rtol=0, atol=1e-4)
    tokens[:, 20:] = 0
    np.testing.assert_allclose(function(tokens)[:, :20], ours[:, :20], rtol=0, atol=1e-5)
    moved = steps.all_logits(model.program, model.params, jnp.asarray(tokens), jnp.arange(1000, 1030, dtype=jnp.int32))
    wanted = reference.run(tokens[0], first=1000)[0]
    np.testing.assert_allclose(moved[0], wanted, rtol=0, atol=2e-3)


def test_a_program_is_a_static_argument():
    """Equal and with equal hash when made twice of one configuration, so that nothing compiles again."""
    config = CONFIGS["plain"]
    assert Program.of(config) == Program.of(config)
    assert hash(Program.of(config)) == hash(Program.of(config))
    assert Program.of(config) != Program.of(CONFIGS["bias"])


def test_step_logits_are_those_of_every_token():
    model = random_model("plain")
    policy = make_policy(model.config.kv_shape("float32"), CacheConfig.full("float32"), 16)
    tokens = jnp.asarray(np.random.default_rng(2).integers(0, 64, (1, 5), dtype=np.int32))
    count = jnp.array([5], jnp.int32)
    every, _ = steps.step_logits(model.program, model.params, policy, policy.init(1), tokens, count)
    last, _ = steps.step(model.program, model.params, policy, policy.init(1), tokens, count)
    np.testing.assert_allclose(every, steps.all_logits(model.program, model.params, tokens), rtol=0, atol=1e-4)
    np.testing.assert_allclose(every[:, -1], last, rtol=0, atol=1e-5)
