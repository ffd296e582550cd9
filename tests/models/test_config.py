# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""config.json of transformers 4 and 5: what is read, and what is refused by name."""

import json
import math

import pytest
import transformers

from qevict_jax.models.config import NAMED_SHAPES, ModelConfig, RopeScaling
from qevict_jax.models.key_map import expected_tensors
from qevict_jax.types import KVShape, QEvictError
from tests.tiny_models import LLAMA3_SCALING, TINY, hf_config


@pytest.mark.parametrize("style", ["v4", "v5"])
@pytest.mark.parametrize("name", TINY)
def test_reads_every_row_in_both_styles(name, style):
    spec, config = TINY[name], ModelConfig.from_hf(hf_config(name, style))
    for field in ("architecture", "layers", "hidden", "heads", "kv_heads", "head_dim", "mlp", "vocab",
                  "rope_theta", "rms_eps", "max_position", "qkv_bias"):  # fmt: skip
        assert getattr(config, field) == getattr(spec, field), field
    assert config.tie_embeddings == spec.tied
    assert config.rope_scaling == (RopeScaling(8.0, 1.0, 4.0, 8192) if spec.rope_scaling else None)
    assert config.dtype == "float32"


def test_json_round_trip_and_hash():
    for config in NAMED_SHAPES.values():
        again = ModelConfig.from_json(json.loads(json.dumps(config.to_json())))
        assert again == config and hash(again) == hash(config)


@pytest.mark.parametrize(
    "name, parameters",
    [("llama-3.1-8b", 8_030_261_248), ("qwen2.5-7b", 7_615_616_512), ("mistral-7b", 7_241_732_096)],
)
def test_named_shapes_have_the_published_parameter_count(name, parameters):
    assert sum(map(math.prod, expected_tensors(NAMED_SHAPES[name]).values())) == parameters


def test_kv_shape():
    assert NAMED_SHAPES["llama-3.1-8b"].kv_shape() == KVShape(32, 8, 128, "bfloat16")
    assert NAMED_SHAPES["qwen2.5-7b"].kv_shape("float32") == KVShape(28, 4, 128, "float32")


def test_explicit_head_dim_wins_and_null_means_derived():
    assert ModelConfig.from_hf(hf_config("mistral")).head_dim == 128  # hidden / heads would be 16
    assert ModelConfig.from_hf(hf_config("llama") | {"head_dim": None}).head_dim == 24


def test_absent_keys_mean_the_defaults_of_transformers():
    content = hf_config("llama", "v4")
    for key in ("rope_theta", "rms_norm_eps", "tie_word_embeddings", "num_key_value_heads", "torch_dtype"):
        del content[key]
    config = ModelConfig.from_hf(content)
    assert (config.rope_theta, config.rms_eps, config.tie_embeddings) == (10000.0, 1e-6, False)
    assert (config.kv_heads, config.dtype) == (config.heads, "float32")


@pytest.mark.parametrize("name", ["llama", "qwen2", "mistral"])
def test_defaults_are_those_of_the_installed_transformers(name):
    given = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "vocab_size", "sliding_window")  # fmt: skip
    content = {key: value for key, value in hf_config(name).items() if key in given}
    ours = ModelConfig.from_hf(content | {"num_key_value_heads": 2})
    theirs = transformers.AutoConfig.for_model(**content, num_key_value_heads=2)
    assert (ours.rms_eps, ours.max_position) == (theirs.rms_norm_eps, theirs.max_position_embeddings)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.tie_embeddings == theirs.tie_word_embeddings


def test_old_spelling_of_the_rope_type():
    scaling = {("type" if key == "rope_type" else key): value for key, value in LLAMA3_SCALING.items()}
    config = ModelConfig.from_hf(hf_config("llama", "v4") | {"rope_scaling": scaling})
    assert config.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_window": None},
        {"sliding_window": 32768},  # no shorter than the context: never in effect
    ],
)
def test_mistral_without_an_effective_window_is_accepted(change):
    ModelConfig.from_hf(hf_config("mistral") | change)


def test_qwen2_with_the_window_switched_off_is_accepted():
    ModelConfig.from_hf(hf_config("qwen2") | {"use_sliding_window": False, "sliding_window": 4096})
    ModelConfig.from_hf(
        hf_config("qwen2") | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 2}
    )


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("llama", {"model_type": "gemma3_text"}, "'gemma3_text' is not supported; supported: llama"),
        ("llama", {"model_type": None}, "model type None"),
        ("mistral", {"sliding_window": 4096}, "sliding window of 4096 tokens"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1}, "of 128"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "layer_types":
                   ["full_attention", "sliding_attention"]}, "sliding window of 64"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "RoPE type 'yarn'"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "RoPE type 'linear'"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "per kind of layer"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial rotary"),
        ("llama", {"hidden_act": "gelu"}, "activation 'gelu'"),
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, r"quantized \(gptq\)"),
        ("llama", {"hidden_size": None}, "hidden_size must be a positive integer, got None"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads must be a positive integer"),
        ("llama", {"num_key_value_heads": 3}, "multiple of kv_heads"),
        ("llama", {"num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": None}, "no multiple of"),
        ("llama", {"head_dim": 63}, "even head_dim"),
    ],
)  # fmt: skip
def test_refuses_by_name(name, change, message):
    with pytest.raises(QEvictError, match=message) as error:
        ModelConfig.from_hf(hf_config(name) | change)
    assert "\n" not in str(error.value)


def test_mistral_without_the_key_has_a_window_of_4096():
    content = hf_config("mistral")
    del content["sliding_window"]
    with pytest.raises(QEvictError, match="sliding window of 4096"):
        ModelConfig.from_hf(content)


def test_from_json_refuses_a_hugging_face_config_and_other_versions():
    with pytest.raises(QEvictError, match="convert the model with"):
        ModelConfig.from_json(hf_config("llama"))
    content = NAMED_SHAPES["mistral-7b"].to_json()
    with pytest.raises(QEvictError, match="version"):
        ModelConfig.from_json(content | {"format_version": 2})
    with pytest.raises(QEvictError, match="surprise"):
        ModelConfig.from_json(content | {"surprise": 1})
