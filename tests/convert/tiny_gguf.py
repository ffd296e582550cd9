# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of `tests.tiny_models` as GGUF files, written with the `gguf` package as llama.cpp would."""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize

from tests.tiny_models import TINY, tensors
from tests.tiny_tokenizer import (
    BOS,
    CHAT_TEMPLATES,
    END_OF_TURN,
    EOS,
    PAD,
    SPECIALS,
    build_tokenizer,
    token_id,
)

_NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 100)
_KINDS = gguf.GGMLQuantizationType


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's row order of q and k: channel i of the first half stands next to i of the second half."""
    rows = weight.reshape(heads, 2, -1, weight.shape[-1])
    return np.stack([rows[:, 0], rows[:, 1]], axis=2).reshape(weight.shape)


def write_gguf(
    file: Path,
    name: str,
    *,
    kind: gguf.GGMLQuantizationType = _KINDS.F32,
    metadata: dict | None = None,
    extra: dict | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    """Writes row `name` and returns `file`.

    Args:
        file: to write.
        name: a key of `TINY`.
        kind: type of the matrices whose rows are whole blocks; the rest stays F32.
        metadata: keys to add or replace; a value of None drops the key.
        extra: further tensors under GGUF names.
        without: GGUF names of tensors to leave out.
    """
    spec = TINY[name]
    arch = "qwen2" if spec.architecture == "qwen2" else "llama"
    writer = gguf.GGUFWriter(file, arch)
    keys = {
        f"{arch}.block_count": spec.layers,
        f"{arch}.context_length": spec.max_position,
        f"{arch}.embedding_length": spec.hidden,
        f"{arch}.feed_forward_length": spec.mlp,
        f"{arch}.attention.head_count": spec.heads,
        f"{arch}.attention.head_count_kv": spec.kv_heads,
        f"{arch}.attention.key_length": spec.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": spec.rms_eps,
        f"{arch}.rope.freq_base": spec.rope_theta,
        f"{arch}.rope.dimension_count": spec.head_dim,
    } | tokenizer_keys(name)
    for key, value in (keys | (metadata or {})).items():
        _add(writer, key, value)
    content = {}
    for hf_name, tensor in tensors(name).items():
        if arch == "llama" and hf_name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = interleaved(tensor, spec.heads if "q_proj" in hf_name else spec.kv_heads)
        content[_gguf_name(hf_name)] = tensor
    for key, tensor in (content | (extra or {})).items():
        if key not in without:
            whole_blocks = tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
            stored = kind if tensor.ndim == 2 and whole_blocks else _KINDS.F32
            writer.add_tensor(key, quantize(tensor, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _gguf_name(hf_name: str) -> str:
    stem, suffix = hf_name.rsplit(".", 1)
    return f"{_NAMES.get_name(stem)}.{suffix}"


def tokenizer_keys(name: str) -> dict:
    """Metadata of the tokenizer of `tests.tiny_tokenizer`."""
    spec = TINY[name]
    model = json.loads(build_tokenizer(add_bos=False).to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get) + list(SPECIALS)
    kinds = [gguf.TokenType.NORMAL] * len(model["vocab"]) + [gguf.TokenType.CONTROL] * len(SPECIALS)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": token_id(BOS) if spec.has_bos else None,
        "tokenizer.ggml.eos_token_id": token_id(EOS),
        "tokenizer.ggml.eot_token_id": token_id(END_OF_TURN),
        "tokenizer.ggml.padding_token_id": token_id(PAD),
        "tokenizer.ggml.add_bos_token": spec.has_bos,
        "tokenizer.chat_template": CHAT_TEMPLATES[spec.chat_template],
    }


def _add(writer: gguf.GGUFWriter, key: str, value) -> None:
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    if value is not None:
        add[type(value)](key, value)
