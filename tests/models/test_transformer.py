# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The modules one by one, against NumPy; the whole against transformers is in `test_reference`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from qevict_jax.models.steps import abstract_params
from qevict_jax.models.transformer import MLP, Attention, RMSNorm, Transformer
from tests.random_model import CONFIGS, random_model

X = np.random.default_rng(0).normal(size=(2, 3, 32)).astype(np.float32)


def test_rms_norm_in_bfloat16_is_computed_in_float32():
    norm = RMSNorm(32, 1e-2, jnp.dtype("float32"))
    norm.scale[...] = jnp.arange(32, dtype=jnp.float32)
    x = jnp.asarray(X * 100, jnp.bfloat16)
    wide = np.float64(np.float32(x))
    wanted = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + 1e-2) * np.arange(32)
    ours = norm(x)
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(ours), wanted, rtol=2**-8, atol=1e-6)


def test_mlp():
    mlp = MLP(CONFIGS["plain"], jnp.dtype("float32"), rngs=nnx.Rngs(1))
    gate, up, down = (np.float64(part.kernel[...]) for part in (mlp.gate, mlp.up, mlp.down))
    wide = np.float64(X)
    hidden = wide @ gate
    wanted = (hidden / (1 + np.exp(-hidden)) * (wide @ up)) @ down
    np.testing.assert_allclose(mlp(jnp.asarray(X)), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "bias"])
def test_heads_are_slices_of_the_projections(name):
    config = CONFIGS[name]
    attention = Attention(config, jnp.dtype("float32"), rngs=nnx.Rngs(2))
    q, k, v = attention.qkv(jnp.asarray(X))
    assert q.shape == (2, 3, config.heads, config.head_dim)
    assert k.shape == v.shape == (2, 3, config.kv_heads, config.head_dim)
    assert (attention.k.bias is not None) == (name == "bias")
    assert attention.o.bias is None
    second = X @ np.asarray(attention.q.kernel[:, 16:32])
    np.testing.assert_allclose(q[:, :, 1], second, rtol=0, atol=1e-5)


def test_a_tied_output_projection_is_the_embedding():
    config = CONFIGS["plain"]
    tied = Transformer(
        type(config)(**{**config.__dict__, "tie_embeddings": True}), jnp.dtype("float32"), rngs=nnx.Rngs(0)
    )
    assert tied.lm_head is None
    normed = tied.final_norm(jnp.asarray(X))
    wanted = np.asarray(normed) @ np.asarray(tied.embed.weight[...]).T
    np.testing.assert_allclose(tied.logits(jnp.asarray(X)), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_stacked_over_layers(name):
    """And the abstract tree is the tree of a real model."""
    config, params = CONFIGS[name], random_model(name).params
    for leaf in jax.tree.leaves(params["blocks"]):
        assert leaf.shape[0] == config.layers
    abstract = abstract_params(config, "float32")
    assert jax.tree.structure(abstract) == jax.tree.structure(params)
    for ours, theirs in zip(jax.tree.leaves(abstract), jax.tree.leaves(params), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    layers = np.asarray(params["blocks"]["attn"]["q"]["kernel"][...])
    assert not np.array_equal(layers[0], layers[1])


def test_logits_are_float32_in_a_16_bit_model():
    model = Transformer(CONFIGS["plain"], jnp.dtype("bfloat16"), rngs=nnx.Rngs(0))
    assert model.logits(jnp.asarray(X, jnp.bfloat16)).dtype == jnp.float32
