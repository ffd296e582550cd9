# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A GGUF file as a model under Hugging Face names, row order and configuration.

llama.cpp stores the rows of q and k of the llama architecture interleaved, for a rotary embedding of
neighbouring channels; Hugging Face rotates halves, so those rows are put back.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from convert.gguf_file import GGUFFile
from convert.gguf_tokenizer import GGUFTokenizer
from convert.source import TensorInfo, dominant_dtype
from qevict_jax.models.config import DTYPES, ModelConfig, RopeScaling
from qevict_jax.types import QEvictError

_ARCHITECTURES = ("llama", "qwen2")  # Mistral comes as "llama": the tensors are the same
_ROPE_FACTORS = "rope_freqs.weight"
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFModel:
    """Implements `Source`.

    Raises:
        QEvictError: names what the file lacks or what is not supported.
    """

    def __init__(self, path: Path):
        self._file = GGUFFile(path)
        self._gguf_names = {hf_name(name): name for name in self._file.tensors if name != _ROPE_FACTORS}
        self.tensors: dict[str, TensorInfo] = {
            name: self._file.tensors[stored] for name, stored in self._gguf_names.items()
        }
        try:
            self.config = self._config(self._file.metadata)
            self._tokenizer = GGUFTokenizer(self._file.metadata)
        except QEvictError as error:
            raise QEvictError(f"{path}: {error}") from None
        if len(self._tokenizer.tokens) > self.config.vocab:
            raise QEvictError(
                f"{path}: {len(self._tokenizer.tokens)} tokens but an embedding of {self.config.vocab} rows"
            )

    def read(self, name: str, dtype: np.dtype) -> np.ndarray:
        """See `Source.read`."""
        tensor = self._file.read(self._gguf_names[name], dtype)
        if self.config.architecture == "llama":
            if name.endswith("q_proj.weight"):
                return halves_from_interleaved(tensor, self.config.heads)
            if name.endswith("k_proj.weight"):
                return halves_from_interleaved(tensor, self.config.kv_heads)
        return tensor

    def write_companions(self, directory: Path) -> None:
        """Builds the tokenizer files from the metadata."""
        self._tokenizer.write(directory)
        generation = {"eos_token_id": self._tokenizer.eos_ids}
        (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")

    def _config(self, metadata: dict[str, Any]) -> ModelConfig:
        architecture = metadata.get("general.architecture")
        if architecture not in _ARCHITECTURES:
            raise QEvictError(
                f"GGUF architecture {architecture!r} is not supported; supported: {', '.join(_ARCHITECTURES)}"
            )
        embedding = self.tensors.get("model.embed_tokens.weight")
        if embedding is None:
            raise QEvictError("tensor token_embd.weight is missing")

        def value(key: str, default: Any = None) -> Any:
            found = metadata.get(f"{architecture}.{key}", default)
            if found is None or isinstance(found, list):
                state = "is missing" if found is None else "differs between layers: not supported"
                raise QEvictError(f"metadata key {architecture}.{key} {state}")
            return found

        if value("expert_count", 0):
            raise QEvictError("mixture-of-experts models are not supported")
        heads, hidden = value("attention.head_count"), value("embedding_length")
        head_dim = value("attention.key_length", hidden // heads)
        if value("rope.dimension_count", head_dim) != head_dim:
            raise QEvictError("partial rotary embedding (rope.dimension_count below head_dim) is not supported")
        scaling = value("rope.scaling.type", "none")
        if scaling != "none":
            raise QEvictError(f"RoPE scaling {scaling!r} is not supported in a GGUF file; supported: none, llama3")
        window, context = value("attention.sliding_window", 0), value("context_length")
        if 0 < window < context:
            raise QEvictError(f"the model attends within a sliding window of {window} tokens: not supported")
        theta = float(value("rope.freq_base", 10000.0))
        dtype = dominant_dtype(self.tensors)
        return ModelConfig(
            architecture=architecture,
            layers=value("block_count"),
            hidden=hidden,
            heads=heads,
            kv_heads=value("attention.head_count_kv", heads),
            head_dim=head_dim,
            mlp=value("feed_forward_length"),
            vocab=embedding.shape[0],
            rope_theta=theta,
            rope_scaling=self._rope_scaling(theta, head_dim),
            rms_eps=shortest_float(value("attention.layer_norm_rms_epsilon")),
            max_position=context,
            tie_embeddings="lm_head.weight" not in self.tensors,
            qkv_bias=architecture == "qwen2",
            # The values of quantized blocks need at most bfloat16's 8 bits.
            dtype=dtype if dtype in DTYPES else "bfloat16",
        )

    def _rope_scaling(self, theta: float, head_dim: int) -> RopeScaling | None:
        """llama.cpp stores llama3 scaling as one divisor per frequency; all such models share 1, 4, 8192."""
        if _ROPE_FACTORS not in self._file.tensors:
            return None
        stored = self._file.read(_ROPE_FACTORS, np.dtype(np.float32))
        scaling = RopeScaling(float(stored.max()), 1.0, 4.0, 8192)
        expected = llama3_divisors(scaling, theta, head_dim)
        if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-4):
            raise QEvictError(
                f"{_ROPE_FACTORS} is not llama3 scaling with low_freq_factor 1, high_freq_factor 4 and 8192 "
                "original positions, the only form that is supported"
            )
        return scaling


def hf_name(name: str) -> str:
    """Hugging Face name of a GGUF tensor; one that has none keeps its own and is then unexpected."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _BLOCK_NAMES:
        return f"model.layers.{parts[1]}.{_BLOCK_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _NAMES:
        return f"{_NAMES[parts[0]]}.{parts[1]}"
    return name


def halves_from_interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Row order of a rotary embedding over halves, from that over neighbouring pairs; [out, in]."""
    out, width = weight.shape
    return weight.reshape(heads, out // heads // 2, 2, width).swapaxes(1, 2).reshape(out, width)


def llama3_divisors(scaling: RopeScaling, theta: float, head_dim: int) -> np.ndarray:
    """By what llama3 scaling divides each of the D/2 rotary frequencies."""
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling.original_max_position / wavelength
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = np.clip(smooth, 0.0, 1.0)
    return 1 / ((1 - smooth) / scaling.factor + smooth)


def shortest_float(value: float) -> float:
    """The decimal that was meant: metadata are float32, and 1e-5 comes back as 9.999999747e-06."""
    return float(np.format_float_scientific(np.float32(value)))
