# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Random models of a few thousand parameters, attention sharp enough that windows differ in importance."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from qevict_jax.models.config import ModelConfig, RopeScaling
from qevict_jax.models.steps import Program
from qevict_jax.models.transformer import Transformer

_PLAIN = {
    "architecture": "llama",
    "layers": 2,
    "hidden": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "mlp": 48,
    "vocab": 64,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "rms_eps": 1e-5,
    "max_position": 8192,
    "tie_embeddings": False,
    "qkv_bias": False,
    "dtype": "float32",
}

CONFIGS = {
    "plain": ModelConfig(**_PLAIN),
    "bias": ModelConfig(**_PLAIN | {"architecture": "qwen2", "qkv_bias": True, "heads": 3, "kv_heads": 1}),
    "scaled": ModelConfig(**_PLAIN | {"rope_theta": 5e5, "rope_scaling": RopeScaling(8.0, 1.0, 4.0, 32), "heads": 2}),
    "wide": ModelConfig(**_PLAIN | {"heads": 8, "kv_heads": 4, "mlp": 64, "vocab": 61}),
}  # fmt: skip


class RandomModel(NamedTuple):
    """What the functions in `qevict_jax.models.steps` take."""

    config: ModelConfig
    program: Program
    params: nnx.State


@cache
def random_model(name: str) -> RandomModel:
    """The model of a row of `CONFIGS`; keys of "bias" carry a constant ten times their spread."""
    config = CONFIGS[name]
    params = nnx.state(Transformer(config, jnp.dtype("float32"), rngs=nnx.Rngs(0)))
    random = np.random.default_rng(7)

    def scaled(path: tuple, leaf: jax.Array) -> jax.Array:
        names = [getattr(key, "key", getattr(key, "name", None)) for key in path]
        if "q" in names and "kernel" in names:
            return leaf * 3.0
        if "embed" in names:
            return leaf * 50.0
        if "bias" in names:
            spread = 10.0 if "k" in names else 0.3
            return jnp.asarray(random.normal(0, spread, leaf.shape), leaf.dtype)
        return leaf

    return RandomModel(config, Program.of(config), jax.tree_util.tree_map_with_path(scaled, params))
