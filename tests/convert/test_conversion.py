# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Whole conversions: every row from every form gives the same checkpoint, or one line that says why not."""

import json
import os

import jax
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from convert import convert
from qevict_jax.models.checkpoint import load_params, read_config
from qevict_jax.models.config import ModelConfig
from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.types import QEvictError
from tests.convert.tiny_gguf import write_gguf
from tests.tiny_models import TINY, hf_config, tensors, write_hf
from tests.tiny_tokenizer import END_OF_TURN, EOS, PAD, token_id

MESSAGES = [{"role": "user", "content": "the thing"}]


def _load(path, dtype=None):
    return load_params(path, read_config(path), dtype)


def _convert(source, tmp_path, name="model", **options):
    return convert(source, tmp_path / name, progress=False, **options)


def _assert_same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize("name", TINY)
def test_shards_and_styles_make_no_difference(tmp_path, name):
    one = _convert(write_hf(tmp_path / "one", name), tmp_path, "a")
    many = _convert(write_hf(tmp_path / "many", name, shards=3, config_style="v4"), tmp_path, "b")
    assert read_config(one) == read_config(many) == ModelConfig.from_hf(hf_config(name))
    _assert_same(_load(one), _load(many))


@pytest.mark.parametrize("name", TINY)
def test_gguf_equals_hugging_face(tmp_path, name):
    extra = {"rope_freqs.weight": _llama3_divisors(name)} if TINY[name].rope_scaling else None
    file = write_gguf(tmp_path / "model.gguf", name, extra=extra)
    from_gguf = _convert(file, tmp_path, "a")
    from_hf = _convert(write_hf(tmp_path / "hf", name), tmp_path, "b")
    config, expected = read_config(from_gguf), read_config(from_hf).to_json()
    if expected["architecture"] == "mistral":
        expected["architecture"] = "llama"  # all that a GGUF file says of a Mistral
    assert config == ModelConfig.from_json(expected)
    _assert_same(_load(from_gguf), _load(from_hf))
    ours, theirs = Tokenizer.load(from_gguf), Tokenizer.load(from_hf)
    assert ours.chat(MESSAGES) == theirs.chat(MESSAGES)
    assert ours.encode("another  ring é 1234") == theirs.encode("another  ring é 1234")
    assert (ours.bos_id, ours.pad_id, ours.eos_ids) == (theirs.bos_id, theirs.pad_id, theirs.eos_ids)


def _llama3_divisors(name):
    """Frequency by frequency, as the Llama 3.1 release spells it out."""
    spec = TINY[name]
    divisors = []
    for i in range(spec.head_dim // 2):
        wavelength = 2 * np.pi * spec.rope_theta ** (2 * i / spec.head_dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(8.0)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / 8 + smooth))
    return np.array(divisors, np.float32)


def test_quantized_gguf_becomes_bfloat16_unless_asked(tmp_path):
    file = write_gguf(tmp_path / "model.gguf", "llama", kind=GGMLQuantizationType.Q8_0)
    path = _convert(file, tmp_path)
    assert read_config(path).dtype == "bfloat16"
    assert _load(path)["embed"]["weight"].dtype == "bfloat16"
    source = tensors("llama")["model.layers.1.mlp.up_proj.weight"]
    expected = dequantize(quantize(source, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)
    wide = _load(_convert(file, tmp_path, "wide", dtype="float32"))
    np.testing.assert_array_equal(wide["blocks"]["mlp"]["up"]["kernel"][1], expected.T)


@pytest.mark.parametrize("kind, dtype", [("F16", "float16"), ("BF16", "bfloat16"), ("F32", "float32")])
def test_unquantized_gguf_keeps_its_dtype(tmp_path, kind, dtype):
    path = _convert(write_gguf(tmp_path / "m.gguf", "llama", kind=GGMLQuantizationType[kind]), tmp_path)
    assert read_config(path).dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype(tmp_path, dtype):
    params = _load(_convert(write_hf(tmp_path / "hf", "llama"), tmp_path, dtype=dtype))
    expected = tensors("llama")["model.embed_tokens.weight"]
    expected = expected.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    np.testing.assert_array_equal(params["embed"]["weight"], expected)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {dtype}


def test_dtype_of_the_source_is_kept(tmp_path):
    path = _convert(write_hf(tmp_path / "hf", "llama", dtype="bfloat16"), tmp_path)
    assert read_config(path).dtype == "bfloat16"


def test_group_size_makes_no_difference(tmp_path):
    source = write_hf(tmp_path / "hf", "qwen2")
    _assert_same(_load(_convert(source, tmp_path, "a", group_bytes=1)), _load(_convert(source, tmp_path, "b")))


def test_the_checkpoint_is_complete_in_itself(tmp_path):
    source = write_hf(tmp_path / "hf", "llama")
    path = _convert(source, tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (path / name).read_bytes() == (source / name).read_bytes()
    generation = json.loads((path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [token_id(EOS), token_id(END_OF_TURN)]
    assert generation["pad_token_id"] == token_id(PAD)
    assert Tokenizer.load(path).chat(MESSAGES) == Tokenizer.load(source).chat(MESSAGES)


def test_eos_that_only_the_model_config_knows_is_kept(tmp_path):
    source = write_hf(tmp_path / "hf", "llama")
    (source / "generation_config.json").unlink()
    assert Tokenizer.load(_convert(source, tmp_path)).eos_ids == {token_id(EOS), token_id(END_OF_TURN)}


def test_existing_destination(tmp_path):
    source = write_hf(tmp_path / "hf", "llama")
    path = _convert(source, tmp_path)
    with pytest.raises(QEvictError, match="exists; choose another destination or pass --overwrite"):
        _convert(source, tmp_path)
    before = (path / "config.json").stat().st_ino
    assert _convert(source, tmp_path, overwrite=True) == path
    assert (path / "config.json").stat().st_ino != before
    assert sorted(os.listdir(tmp_path)) == ["hf", "model"]


def test_a_checkpoint_is_not_converted_twice(tmp_path):
    path = _convert(write_hf(tmp_path / "hf", "llama"), tmp_path)
    with pytest.raises(QEvictError, match="has been converted already"):
        _convert(path, tmp_path, "again")


@pytest.mark.parametrize("source", ["hf", "hf/model.safetensors"])
def test_what_is_no_model(tmp_path, source):
    write_hf(tmp_path / "hf", "llama")
    (tmp_path / "hf/config.json").unlink()
    with pytest.raises(QEvictError, match="config.json"):
        _convert(tmp_path / source, tmp_path)
    with pytest.raises(QEvictError, match="does not exist"):
        _convert(tmp_path / "nowhere", tmp_path)


def test_an_unknown_dtype_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(QEvictError, match="dtype must be one of"):
        _convert(write_hf(tmp_path / "hf", "llama"), tmp_path, dtype="int8")
    assert os.listdir(tmp_path) == ["hf"]
