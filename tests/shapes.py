# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes of real models for tests that trace or compile without weights."""

from qevict_jax.models.config import NAMED_SHAPES, ModelConfig

SMOLLM2 = ModelConfig(
    architecture="llama",
    layers=30,
    hidden=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    mlp=1536,
    vocab=49152,
    rope_theta=1e5,
    rope_scaling=None,
    rms_eps=1e-5,
    max_position=8192,
    tie_embeddings=True,
    qkv_bias=False,
    dtype="bfloat16",
)
SHAPES = {**NAMED_SHAPES, "smollm2-135m": SMOLLM2}
