# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Loading a converted checkpoint: values, dtypes, errors, and the promise about memory."""

import json
import os

import jax
import numpy as np
import pytest

from convert import convert
from qevict_jax.models.checkpoint import load_params, read_config
from qevict_jax.types import QEvictError
from tests.tiny_models import TINY, tensors, write_hf


@pytest.fixture
def checkpoint(tmp_path):
    return convert(write_hf(tmp_path / "hf", "qwen2"), tmp_path / "model", progress=False)


@pytest.mark.parametrize("name", TINY)
def test_values_reach_their_place(tmp_path, name):
    path = convert(write_hf(tmp_path / "hf", name), tmp_path / "model", progress=False)
    params, source = load_params(path, read_config(path)), tensors(name)
    blocks = params["blocks"]
    for layer in range(TINY[name].layers):
        prefix = f"model.layers.{layer}."
        for part in "qkvo":
            weight = source[f"{prefix}self_attn.{part}_proj.weight"]
            np.testing.assert_array_equal(blocks["attn"][part]["kernel"][layer], weight.T)
            if part != "o" and TINY[name].qkv_bias:
                bias = source[f"{prefix}self_attn.{part}_proj.bias"]
                np.testing.assert_array_equal(blocks["attn"][part]["bias"][layer], bias)
            else:
                assert "bias" not in blocks["attn"][part]
        for part in ("gate", "up", "down"):
            weight = source[f"{prefix}mlp.{part}_proj.weight"]
            np.testing.assert_array_equal(blocks["mlp"][part]["kernel"][layer], weight.T)
        for ours, theirs in (("attn_norm", "input_layernorm"), ("mlp_norm", "post_attention_layernorm")):
            np.testing.assert_array_equal(blocks[ours]["scale"][layer], source[f"{prefix}{theirs}.weight"])
    np.testing.assert_array_equal(params["embed"]["weight"], source["model.embed_tokens.weight"])
    np.testing.assert_array_equal(params["final_norm"]["scale"], source["model.norm.weight"])
    if TINY[name].tied:
        assert "lm_head" not in params
    else:
        np.testing.assert_array_equal(params["lm_head"]["kernel"], source["lm_head.weight"].T)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", None])
def test_dtype_is_cast_on_load(checkpoint, dtype):
    params = load_params(checkpoint, read_config(checkpoint), dtype)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {dtype or "float32"}


def test_unknown_dtype(checkpoint):
    with pytest.raises(QEvictError, match="dtype must be one of float32, bfloat16, float16, got 'int8'"):
        load_params(checkpoint, read_config(checkpoint), "int8")


def test_a_directory_that_is_no_checkpoint(tmp_path):
    with pytest.raises(QEvictError, match="no config.json"):
        read_config(tmp_path)
    with pytest.raises(QEvictError, match="convert the model"):
        read_config(write_hf(tmp_path / "hf", "llama"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(QEvictError, match="not valid JSON"):
        read_config(tmp_path)


def test_a_checkpoint_that_does_not_fit_its_config(checkpoint):
    content = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(content | {"mlp": 113}))
    with pytest.raises(QEvictError, match=r"mlp.gate_proj.weight of shape \(113, 256\) has shape \(112, 256\)"):
        load_params(checkpoint, read_config(checkpoint))
    (checkpoint / "config.json").write_text(json.dumps(content | {"layers": 3}))
    with pytest.raises(QEvictError, match=r"model.layers.2.\S+ of shape \S+ is missing"):
        load_params(checkpoint, read_config(checkpoint))


def test_damaged_data(checkpoint):
    data = max((checkpoint / "weights").rglob("*"), key=lambda file: file.stat().st_size if file.is_file() else 0)
    os.truncate(data, data.stat().st_size // 2)
    with pytest.raises(QEvictError, match="not a readable Orbax checkpoint") as error:
        load_params(checkpoint, read_config(checkpoint))
    assert "\n" not in str(error.value)


def test_weights_that_are_gone(checkpoint):
    (checkpoint / "weights").rename(checkpoint / "elsewhere")
    with pytest.raises(QEvictError, match="not a readable Orbax checkpoint"):
        load_params(checkpoint, read_config(checkpoint))


def test_a_relative_path_loads(tmp_path, monkeypatch):
    """Orbax itself wants absolute paths; a user types what they like."""
    convert(write_hf(tmp_path / "hf", "llama"), tmp_path / "checkpoint", progress=False)
    monkeypatch.chdir(tmp_path)
    assert load_params("checkpoint", read_config("checkpoint"))["embed"]["weight"].size
