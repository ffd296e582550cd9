# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Reading GGUF: row order, scaling, block types, and refusals that name what is wrong."""

import os

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from convert import gguf_file
from convert.conversion import open_source
from convert.gguf_model import GGUFModel, halves_from_interleaved, hf_name, llama3_divisors, shortest_float
from convert.source import check_tensors
from qevict_jax.models.checkpoint import load_params, read_config
from qevict_jax.models.config import RopeScaling
from qevict_jax.models.key_map import rows
from qevict_jax.types import QEvictError
from tests.convert.tiny_gguf import interleaved, write_gguf
from tests.tiny_models import TINY, tensor_shapes

_F32 = np.dtype(np.float32)


def test_row_order():
    # Two heads of four channels: pairs (0, 2) and (1, 3) of each head stand side by side in GGUF.
    weight = np.arange(8, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    assert interleaved(weight, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    np.testing.assert_array_equal(halves_from_interleaved(interleaved(weight, 2), 2), weight)


def test_names_of_every_tensor():
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 2)
    for name in tensor_shapes(TINY["qwen2"]):
        stem, suffix = name.rsplit(".", 1)
        assert hf_name(f"{names.get_name(stem)}.{suffix}") == name
    assert hf_name("blk.0.attn_q_norm.weight") == "blk.0.attn_q_norm.weight"


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_pieces_equal_the_whole(tmp_path, monkeypatch, kind):
    path = write_gguf(tmp_path / "m.gguf", "llama-d80", kind=GGMLQuantizationType[kind])
    monkeypatch.setattr(gguf_file, "PIECE_BYTES", 4 * 160 * 7)  # seven rows
    file = gguf_file.GGUFFile(path)
    for tensor in gguf.GGUFReader(path).tensors:
        expected = dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.read(tensor.name, _F32), expected)
        half = file.read(tensor.name, np.dtype(ml_dtypes.bfloat16))
        np.testing.assert_array_equal(half, expected.astype(ml_dtypes.bfloat16))


def test_context_and_epsilon_come_back_as_written(tmp_path):
    config = GGUFModel(write_gguf(tmp_path / "m.gguf", "llama")).config
    assert (config.rms_eps, config.rope_theta, config.max_position) == (1e-5, 10000.0, 32768)
    assert shortest_float(float(np.float32(1e-6))) == 1e-6


def test_head_dim_and_theta_have_defaults(tmp_path):
    dropped = {f"llama.{key}": None for key in ("attention.key_length", "rope.dimension_count", "rope.freq_base")}
    config = GGUFModel(write_gguf(tmp_path / "m.gguf", "llama-d80", metadata=dropped)).config
    assert (config.head_dim, config.rope_theta) == (80, 10000.0)


def test_llama3_scaling_is_recognised(tmp_path):
    scaling = RopeScaling(32.0, 1.0, 4.0, 8192)
    divisors = llama3_divisors(scaling, 500_000.0, 64).astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", "llama3-scaled", extra={"rope_freqs.weight": divisors})
    assert GGUFModel(path).config.rope_scaling == scaling
    path = write_gguf(tmp_path / "n.gguf", "llama3-scaled", extra={"rope_freqs.weight": divisors**2})
    with pytest.raises(QEvictError, match="rope_freqs.weight is not llama3 scaling"):
        GGUFModel(path)


@pytest.mark.parametrize(
    "metadata, message",
    [
        (
            {"general.architecture": "gemma3"},
            "GGUF architecture 'gemma3' is not supported; supported: llama, qwen2",
        ),
        ({"llama.rope.scaling.type": "yarn"}, "RoPE scaling 'yarn'"),
        ({"llama.rope.dimension_count": 32}, "partial rotary"),
        ({"llama.attention.sliding_window": 4096}, "sliding window of 4096"),
        ({"llama.expert_count": 8}, "mixture-of-experts"),
        ({"llama.feed_forward_length": None}, "metadata key llama.feed_forward_length is missing"),
        ({"llama.attention.head_count_kv": [1, 2]}, "head_count_kv differs between layers"),
        (
            {"tokenizer.ggml.pre": "deepseek-llm"},
            "pre-tokenizer 'deepseek-llm' is not supported; supported: gpt-2",
        ),
        ({"tokenizer.ggml.model": "bert"}, "GGUF tokenizer 'bert' is not supported"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokenizer.ggml.eos_token_id": 999}, "eos_token_id is 999, there are 276 tokens"),
        ({"split.count": 3}, "is one of 3 parts; merge them first"),
    ],
)
def test_refuses_by_name(tmp_path, metadata, message):
    path = write_gguf(tmp_path / "m.gguf", "llama", metadata=metadata)
    with pytest.raises(QEvictError, match=message) as error:
        GGUFModel(path)
    assert "m.gguf" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"without": ("blk.1.ffn_up.weight",)}, "tensor model.layers.1.mlp.up_proj.weight is missing"),
        ({"without": ("token_embd.weight",)}, "tensor token_embd.weight is missing"),
        (
            {"extra": {"blk.0.attn_q_norm.weight": np.ones(4, np.float32)}},
            "unexpected tensor blk.0.attn_q_norm",
        ),
        ({"extra": {"output_norm.weight": np.ones(4, np.float32)}}, r"model.norm.weight has shape \(4,\)"),
    ],
)
def test_tensors_are_checked(tmp_path, options, message):
    path = write_gguf(tmp_path / "m.gguf", "llama", **options)
    with pytest.raises(QEvictError, match=message):
        check_tensors(open_source(path), path)


def test_more_tokens_than_rows(tmp_path):
    rows = {"token_embd.weight": np.zeros((200, 96), np.float32)}
    with pytest.raises(QEvictError, match="276 tokens but an embedding of 200 rows"):
        GGUFModel(write_gguf(tmp_path / "m.gguf", "llama", extra=rows))


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.5, 0.999])
def test_truncated(tmp_path, share):
    path = write_gguf(tmp_path / "m.gguf", "llama")
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(QEvictError, match="m.gguf is truncated or damaged"):
        GGUFModel(path)


def test_not_a_gguf_file(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(QEvictError, match="is neither a model directory nor a GGUF file"):
        GGUFModel(tmp_path / "m.gguf")


@pytest.mark.model
def test_every_weight_of_smollm2(smollm2_file, smollm2):
    params = load_params(smollm2, read_config(smollm2))
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_file).tensors}
    config = read_config(smollm2)
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.rope_theta, config.rms_eps, config.max_position) == (100_000.0, 1e-5, 8192)
    assert config.tie_embeddings
    for row in rows(config):
        leaf = params
        for part in row.path:
            leaf = leaf[part]
        for layer, name in enumerate(row.names(config)):
            tensor = next(stored.pop(key) for key in list(stored) if hf_name(key) == name)
            expected = dequantize(tensor.data, tensor.tensor_type)
            ours = np.asarray(leaf[layer] if row.per_layer else leaf)
            ours = ours.T if row.transpose else ours
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                ours = interleaved(ours, 9 if "q_proj" in name else 3)
            np.testing.assert_array_equal(ours, expected.astype(ml_dtypes.bfloat16))
    assert not stored  # nothing of the file was left out
