# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The golden logits notice the mistakes a reader of checkpoints can make: each moves some of them far."""

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

import torch

from tests import golden
from tests.reference import torch_model
from tests.tiny_models import LLAMA3_SCALING, TINY, write_hf

pytestmark = pytest.mark.reference


def scaled(**changes) -> dict:
    return {"rope_parameters": LLAMA3_SCALING | {"rope_theta": 500_000.0} | changes}


CONFIG_MISTAKES = {
    "theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 10_500.0}}),
    "eps": ("mistral", {"rms_norm_eps": 1e-5}),
    "no scaling": ("llama3-scaled", {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}),
    "scaling of all channels": ("llama3-scaled", scaled(rope_type="linear")),
    "scaling factor": ("llama3-scaled", scaled(factor=7.0)),
    "low_freq_factor": ("llama3-scaled", scaled(low_freq_factor=1.2)),
    "high_freq_factor": ("llama3-scaled", scaled(high_freq_factor=3.5)),
    "original context": ("llama3-scaled", scaled(original_max_position_embeddings=8000)),
}


def no_bias(projection: str) -> Callable:
    def mistake(model):
        for layer in model.model.layers:
            torch.nn.init.zeros_(getattr(layer.self_attn, projection).bias)

    return mistake


def interleaved_rows(model) -> None:
    """llama.cpp keeps the two channels of a RoPE pair side by side, Hugging Face half a head apart."""
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            pairs = projection.weight.unflatten(0, (-1, 2, layer.self_attn.head_dim // 2))
            projection.weight = torch.nn.Parameter(pairs.transpose(1, 2).flatten(0, 2).contiguous())


def scale_of_hidden_over_heads(model) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling = (model.config.hidden_size / model.config.num_attention_heads) ** -0.5


def strided_groups(model) -> None:
    """Query head h reads KV head h % K instead of h // G."""
    for layer in model.model.layers:
        attention = layer.self_attn
        for projection, dim in ((attention.q_proj, 0), (attention.o_proj, 1)):
            heads = projection.weight.unflatten(dim, (-1, attention.num_key_value_groups, attention.head_dim))
            projection.weight = torch.nn.Parameter(heads.transpose(dim, dim + 1).flatten(dim, dim + 2).contiguous())


def swapped_norms(model) -> None:
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = (
            layer.post_attention_layernorm,
            layer.input_layernorm,
        )


def no_final_norm_scale(model) -> None:
    torch.nn.init.ones_(model.model.norm.weight)


def swapped_gate_and_up(model) -> None:
    for layer in model.model.layers:
        layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj


WEIGHT_MISTAKES = {
    "no query bias": ("qwen2", no_bias("q_proj")),
    "no key bias": ("qwen2", no_bias("k_proj")),
    "no value bias": ("qwen2", no_bias("v_proj")),
    "rope pairs": ("llama", interleaved_rows),
    "rope pairs at head_dim 80": ("llama-d80", interleaved_rows),
    "attention scale": ("mistral", scale_of_hidden_over_heads),
    "groups of query heads": ("llama", strided_groups),
    "layer norms": ("llama", swapped_norms),
    "final norm": ("llama", no_final_norm_scale),
    "gate and up": ("llama", swapped_gate_and_up),
}


def largest_move(name: str, model) -> dict[str, float]:
    """Per case, the largest change of a kept logit."""
    expected = golden.load(name)
    return {
        case.name: float(np.abs(got[-golden.KEPT :] - expected[f"{case.name}/logits"]).max())
        for case in golden.cases(name)
        for got in [torch_model.logits(model, case.tokens, case.positions)]
    }


@pytest.mark.parametrize("mistake", CONFIG_MISTAKES)
def test_wrong_config_moves_logits(mistake, tmp_path):
    name, changes = CONFIG_MISTAKES[mistake]
    moves = largest_move(name, torch_model.load(write_hf(tmp_path, name), **changes))
    assert max(moves.values()) > 25 * golden.TOLERANCE, moves


@pytest.mark.parametrize("mistake", WEIGHT_MISTAKES)
def test_wrong_weights_move_logits(mistake, tmp_path):
    name, change = WEIGHT_MISTAKES[mistake]
    model = torch_model.load(write_hf(tmp_path, name))
    change(model)
    moves = largest_move(name, model)
    assert max(moves.values()) > 25 * golden.TOLERANCE, moves


@pytest.mark.parametrize("name", TINY)
def test_golden_is_what_transformers_says(name, tmp_path):
    moves = largest_move(name, torch_model.load(write_hf(tmp_path, name)))
    assert max(moves.values()) < golden.TOLERANCE, moves
