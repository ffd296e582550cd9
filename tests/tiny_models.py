# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints in Hugging Face form, one row per thing that can go wrong when a model is read.

A weight depends on the row and the tensor name alone: shards, config style and machine change nothing;
`tests/golden` holds the logits that transformers computes from these weights.
"""

import dataclasses
import json
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tests.tiny_tokenizer import BOS, END_OF_TURN, EOS, PAD, token_id, write_tokenizer

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclasses.dataclass(frozen=True)
class TinySpec:
    """Shape of one row. `state_head_dim=False` leaves head_dim out of config.json (it is hidden / heads).

    Two rows have a large rms_eps: at the usual 1e-5 a reader that ignores it would go unnoticed.
    """

    architecture: str = "llama"  # "llama", "qwen2" or "mistral"
    layers: int = 2
    hidden: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 112
    vocab: int = 300  # more rows than the tokenizer has ids, as in many real checkpoints
    rope_theta: float = 10_000.0
    rope_scaling: dict | None = None
    rms_eps: float = 1e-5
    max_position: int = 32_768
    tied: bool = False
    state_head_dim: bool = True
    chat_template: str = "with_bos"
    has_bos: bool = True

    @property
    def qkv_bias(self) -> bool:
        return self.architecture == "qwen2"


TINY: dict[str, TinySpec] = {
    "llama": TinySpec(),
    "llama3-scaled": TinySpec(rope_theta=500_000.0, rope_scaling=LLAMA3_SCALING, max_position=131_072),
    "qwen2": TinySpec(
        architecture="qwen2", hidden=256, rope_theta=1e6, rms_eps=1e-6, state_head_dim=False, has_bos=False,
        chat_template="without_bos",
    ),
    "mistral": TinySpec(architecture="mistral", hidden=64, head_dim=128, rope_theta=1e6, rms_eps=1e-2),
    "llama-tied": TinySpec(tied=True, chat_template="without_bos"),
    "llama-d80": TinySpec(hidden=160, heads=2, kv_heads=1, head_dim=80, rms_eps=1e-2, state_head_dim=False),
    "qwen2-g7": TinySpec(
        architecture="qwen2", hidden=64, heads=14, rope_theta=1e6, rms_eps=1e-6, tied=True, has_bos=False,
        chat_template="without_bos",
    ),
    "llama-g1": TinySpec(heads=3, kv_heads=3),
}  # fmt: skip

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "mistral": "MistralForCausalLM"}


def tensor_shapes(spec: TinySpec) -> dict[str, tuple[int, ...]]:
    """Hugging Face tensor names and [out, in] shapes, in the order of the model."""
    query, key_value = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab, spec.hidden)}
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (spec.hidden,)
        for name, out in (("q_proj", query), ("k_proj", key_value), ("v_proj", key_value)):
            shapes[f"{prefix}self_attn.{name}.weight"] = (out, spec.hidden)
            if spec.qkv_bias:
                shapes[f"{prefix}self_attn.{name}.bias"] = (out,)
        shapes[prefix + "self_attn.o_proj.weight"] = (spec.hidden, query)
        shapes[prefix + "post_attention_layernorm.weight"] = (spec.hidden,)
        shapes[prefix + "mlp.gate_proj.weight"] = (spec.mlp, spec.hidden)
        shapes[prefix + "mlp.up_proj.weight"] = (spec.mlp, spec.hidden)
        shapes[prefix + "mlp.down_proj.weight"] = (spec.hidden, spec.mlp)
    shapes["model.norm.weight"] = (spec.hidden,)
    if not spec.tied:
        shapes["lm_head.weight"] = (spec.vocab, spec.hidden)
    return shapes


def tensors(name: str) -> dict[str, np.ndarray]:
    """All float32 weights of row `name`, scaled so that logits have a standard deviation of about 3."""
    spec = TINY[name]
    return {key: _tensor(name, spec, key, shape) for key, shape in tensor_shapes(spec).items()}


def _tensor(name: str, spec: TinySpec, key: str, shape: tuple[int, ...]) -> np.ndarray:
    noise = np.random.default_rng(zlib.crc32(f"{name}/{key}".encode())).standard_normal(shape, dtype=np.float32)
    if key.endswith("norm.weight"):
        return 1 + np.float32(0.2) * noise
    if key.endswith("k_proj.bias"):
        return noise + _key_bias_outliers(spec)
    if key.endswith(".bias"):
        return np.float32(0.3) * noise
    if key == "model.embed_tokens.weight":
        return noise * np.float32(3 / spec.hidden**0.5 if spec.tied else 1)
    # Queries stay small where keys are huge, or float32 itself would blur the logits more than the tests allow.
    query_gain = 0.5 if spec.qkv_bias else 1.5
    gain = {"q_proj": query_gain, "k_proj": 1.5, "lm_head": 3.0}.get(key.split(".")[-2], 1.0)
    return noise * np.float32(gain / shape[1] ** 0.5)


def _key_bias_outliers(spec: TinySpec) -> np.ndarray:
    """Hundreds on a few slowly turning channels, as in Qwen2.5: near keys share them, distant ones do not."""
    bias = np.zeros((spec.kv_heads, spec.head_dim), np.float32)
    half = spec.head_dim // 2
    bias[:, half - 2], bias[:, half - 5], bias[:, -1], bias[:, -3] = 400, -250, 300, -120
    bias[1:] *= -0.7
    return bias.reshape(-1)


def hf_config(name: str, config_style: str = "v5") -> dict:
    """config.json of row `name` as transformers 4 or 5 writes it (they differ in RoPE and dtype keys)."""
    spec = TINY[name]
    config = {
        "architectures": [_CLASSES[spec.architecture]],
        "model_type": spec.architecture,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.mlp,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "vocab_size": spec.vocab,
        "hidden_act": "silu",
        "rms_norm_eps": spec.rms_eps,
        "max_position_embeddings": spec.max_position,
        "tie_word_embeddings": spec.tied,
        "bos_token_id": token_id(BOS) if spec.has_bos else None,
        "eos_token_id": token_id(EOS),
        "attention_dropout": 0.0,
    }
    if spec.state_head_dim:
        config["head_dim"] = spec.head_dim
    if spec.architecture == "qwen2":
        config |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": spec.layers}
    elif spec.architecture == "mistral":
        config["sliding_window"] = None
    if config_style == "v5":
        scaling = spec.rope_scaling or {"rope_type": "default"}
        return config | {"rope_parameters": scaling | {"rope_theta": spec.rope_theta}, "dtype": "float32"}
    if config_style == "v4":
        return config | {
            "rope_theta": spec.rope_theta,
            "rope_scaling": spec.rope_scaling,
            "torch_dtype": "float32",
            "transformers_version": "4.46.0",
        }
    raise ValueError(f"config_style must be 'v4' or 'v5', got {config_style!r}")


def write_hf(
    directory: str | Path, name: str, *, shards: int = 1, config_style: str = "v5", dtype: str = "float32"
) -> Path:
    """Writes row `name` as a Hugging Face model directory and returns it.

    Args:
      directory: made when missing.
      name: a key of `TINY`.
      shards: 1 writes model.safetensors, more write model-0000i-of-0000n.safetensors and the index.
      config_style: "v5" or "v4", the transformers release whose config.json is imitated.
      dtype: "float32" or "bfloat16" of the stored weights; golden logits hold for float32 only.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    spec = TINY[name]
    config = hf_config(name, config_style)
    config["dtype" if config_style == "v5" else "torch_dtype"] = dtype
    _write_json(directory / "config.json", config)
    stop = [token_id(EOS), token_id(END_OF_TURN)]
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": stop, "pad_token_id": token_id(PAD)}
    _write_json(directory / "generation_config.json", generation)
    write_tokenizer(directory, has_bos=spec.has_bos, template=spec.chat_template, config_style=config_style)
    cast = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype]
    _write_weights(directory, {key: value.astype(cast) for key, value in tensors(name).items()}, shards)
    return directory


def _write_weights(directory: Path, weights: dict[str, np.ndarray], shards: int) -> None:
    metadata = {"format": "pt"}
    if shards == 1:
        save_file(weights, directory / "model.safetensors", metadata=metadata)
        return
    keys = list(weights)
    weight_map = {
        key: f"model-{1 + i * shards // len(keys):05}-of-{shards:05}.safetensors" for i, key in enumerate(keys)
    }
    for file in sorted(set(weight_map.values())):
        part = {key: weights[key] for key in keys if weight_map[key] == file}
        save_file(part, directory / file, metadata=metadata)
    total = sum(value.nbytes for value in weights.values())
    _write_json(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2))
