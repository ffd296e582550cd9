# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Every defect of a Hugging Face directory is one line that names it, before anything is written."""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert import convert
from qevict_jax.models.checkpoint import load_params, read_config
from qevict_jax.types import QEvictError
from tests.tiny_models import write_hf

_SHARD = "model-00002-of-00003.safetensors"


def _refuses(directory, message):
    before = sorted(os.listdir(directory.parent))
    with pytest.raises(QEvictError, match=message) as error:
        convert(directory, directory.parent / "model", progress=False)
    assert "\n" not in str(error.value)
    assert sorted(os.listdir(directory.parent)) == before


def _edit_config(directory, **changes):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def _edit_weights(directory, edit):
    weights = load_file(directory / "model.safetensors")
    edit(weights)
    save_file(weights, directory / "model.safetensors")


def test_missing_shard(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama", shards=3)
    (directory / _SHARD).unlink()
    _refuses(directory, f"shard {_SHARD} is missing")
    (directory / "model.safetensors.index.json").unlink()
    _refuses(directory, f"shard {_SHARD} is missing")


def test_shards_without_an_index(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama", shards=3)
    (directory / "model.safetensors.index.json").unlink()
    assert convert(directory, tmp_path / "model", progress=False).is_dir()


def test_a_single_file_under_another_name(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    (directory / "model.safetensors").rename(directory / "weights.safetensors")
    assert convert(directory, tmp_path / "model", progress=False).is_dir()


def test_several_files_without_an_index_are_ambiguous(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    shutil.copy(directory / "model.safetensors", directory / "adapter.safetensors")
    (directory / "model.safetensors").rename(directory / "weights.safetensors")
    _refuses(directory, "2 safetensors files but no model.safetensors.index.json")


def test_the_same_tensor_in_two_shards(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama", shards=3)
    weights = load_file(directory / _SHARD)
    name = next(iter(load_file(directory / "model-00001-of-00003.safetensors")))
    save_file(weights | {name: np.zeros(3, np.float32)}, directory / _SHARD)
    _refuses(directory, f"tensor {name} is also in .*model-00001-of-00003")


def test_truncated_shard(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama", shards=3)
    size = (directory / _SHARD).stat().st_size
    os.truncate(directory / _SHARD, size - 1)
    _refuses(directory, f"{_SHARD} is truncated: it should have {size} bytes, it has {size - 1}")


def test_missing_tensor(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    _edit_weights(directory, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    _refuses(directory, "tensor model.layers.1.mlp.up_proj.weight is missing")


def test_unexpected_tensor(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    _edit_weights(directory, lambda w: w.update({"model.layers.0.self_attn.q_norm.weight": np.ones(4)}))
    _refuses(directory, r"model.safetensors: unexpected tensor model.layers.0.self_attn.q_norm.weight")


def test_more_layers_than_the_config_says(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    _edit_config(directory, num_hidden_layers=1)
    _refuses(directory, r"unexpected tensor model.layers.1.\S+ \(and 8 more\)")


def test_wrong_shape(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    name = "model.layers.0.self_attn.k_proj.weight"
    _edit_weights(directory, lambda weights: weights.update({name: weights[name].T.copy()}))
    _refuses(directory, rf"tensor {name} has shape \(96, 128\), the configuration calls for \(128, 96\)")


def test_missing_bias_of_qwen2(tmp_path):
    directory = write_hf(tmp_path / "hf", "qwen2")
    _edit_weights(directory, lambda weights: weights.pop("model.layers.0.self_attn.k_proj.bias"))
    _refuses(directory, "tensor model.layers.0.self_attn.k_proj.bias is missing")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "gemma3_text"}, "hf: model type 'gemma3_text' is not supported"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding window of 4096"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantized \(awq\)"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "RoPE type 'dynamic'"),
    ],
)
def test_unsupported_config(tmp_path, change, message):
    directory = write_hf(tmp_path / "hf", "llama")
    _edit_config(directory, **change)
    _refuses(directory, message)


def test_quantized_tensor(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    name = "model.layers.0.mlp.up_proj.weight"
    _edit_weights(directory, lambda weights: weights.update({name: weights[name].astype(np.int8)}))
    _refuses(directory, f"tensor {name} is stored as I8; quantized and integer weights are not supported")


def test_untied_without_a_head(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama-tied")
    _edit_config(directory, tie_word_embeddings=False)
    _refuses(directory, "lm_head.weight is missing .* set tie_word_embeddings to true")


def test_tied_with_a_head_that_is_the_embedding(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama-tied")
    _edit_weights(directory, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].copy()}))
    path = convert(directory, tmp_path / "model", progress=False)
    assert "lm_head" not in load_params(path, read_config(path))


def test_tied_with_another_head(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    _edit_config(directory, tie_word_embeddings=True)
    _refuses(directory, "lm_head.weight differs from model.embed_tokens.weight although config.json sets")


def test_saved_inverse_frequencies_are_ignored(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    _edit_weights(directory, lambda weights: weights.update({name: np.ones(32, np.float32)}))
    assert convert(directory, tmp_path / "model", progress=False).is_dir()


@pytest.mark.parametrize(
    "file, message",
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer.json; write one with"),
        ("model.safetensors", "has no safetensors file"),
    ],
)
def test_missing_file(tmp_path, file, message):
    directory = write_hf(tmp_path / "hf", "llama")
    (directory / file).unlink()
    _refuses(directory, message)


@pytest.mark.parametrize(
    "name, message",
    [("pytorch_model.bin", "must first be saved as safetensors"), ("m.gguf", "GGUF file itself")],
)
def test_weights_of_another_kind(tmp_path, name, message):
    directory = write_hf(tmp_path / "hf", "llama")
    (directory / "model.safetensors").rename(directory / name)
    _refuses(directory, message)


def test_more_tokens_than_rows(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    _edit_config(directory, vocab_size=200)
    _refuses(directory, "tokenizer.json has 276 tokens but the embedding 200 rows")


def test_damaged_tokenizer(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    (directory / "tokenizer.json").write_text("[]")
    _refuses(directory, "tokenizer.json cannot be read")


def test_damaged_json(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    (directory / "config.json").write_text("{oops")
    _refuses(directory, "config.json is not valid JSON")


def test_values_beyond_float16(tmp_path):
    directory = write_hf(tmp_path / "hf", "llama")
    name = "model.layers.0.mlp.up_proj.weight"
    _edit_weights(directory, lambda weights: weights.update({name: weights[name] * np.float32(1e6)}))
    with pytest.raises(QEvictError, match=f"tensor {name} has values beyond float16"):
        convert(directory, tmp_path / "model", dtype="float16", progress=False)
    assert os.listdir(tmp_path) == ["hf"]
