# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What a model is, read from config.json of transformers 4 or 5, and what this library refuses to run.

An absent key means what it means to transformers: the default of that architecture's own configuration class.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qevict_jax.types import KVShape, QEvictError

ARCHITECTURES = ("llama", "qwen2", "mistral")
DTYPES = ("float32", "bfloat16", "float16")
FORMAT = {"format": "qevict_jax", "format_version": 1}

_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "qwen2": {"max_position_embeddings": 32768, "max_window_layers": 28, "sliding_window": 4096},
    "mistral": {"max_position_embeddings": 131072, "sliding_window": 4096},
}


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1 frequency scaling, ``rope_type: "llama3"``.

    Attributes:
        factor: division of the low frequencies.
        low_freq_factor: wavelengths above ``original_max_position / low_freq_factor`` are divided by factor.
        high_freq_factor: wavelengths below ``original_max_position / high_freq_factor`` stay.
        original_max_position: tokens of context before scaling.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True)
class ModelConfig:
    """Architecture of a decoder-only model; hashable, so it can be a static argument of ``jax.jit``.

    Attributes:
        architecture: "llama", "qwen2" or "mistral".
        layers: L.
        hidden: E, width of the residual stream.
        heads: H.
        kv_heads: K, a divisor of H.
        head_dim: D, not necessarily E / H.
        mlp: width of the gated MLP.
        vocab: V, rows of the embedding (may exceed the number of token ids).
        rope_theta: base of the rotary frequencies.
        rope_scaling: llama3 scaling or None.
        rms_eps: epsilon inside the RMS norms.
        max_position: context length in tokens.
        tie_embeddings: the embedding is also the output projection.
        qkv_bias: q, k and v projections have biases (Qwen2).
        dtype: name of the dtype in which the weights are stored.
        checkpoint: directory that this was read from; "" if it was not. Not a part of the architecture: two
            configurations may differ in it and be equal.
    """

    architecture: Literal["llama", "qwen2", "mistral"]
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_eps: float
    max_position: int
    tie_embeddings: bool
    qkv_bias: bool
    dtype: str
    checkpoint: str = dataclasses.field(default="", compare=False)

    def __post_init__(self):
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "mlp", "vocab", "max_position"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise QEvictError(f"model config: {name} must be a positive integer, got {value!r}")
        if self.architecture not in ARCHITECTURES:
            raise QEvictError(f"model config: architecture {self.architecture!r} is none of {ARCHITECTURES}")
        if self.heads % self.kv_heads:
            raise QEvictError(f"model config: heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise QEvictError(f"model config: rotary embedding needs an even head_dim, got {self.head_dim}")
        if self.dtype not in DTYPES:
            raise QEvictError(f"model config: dtype {self.dtype!r} is none of {', '.join(DTYPES)}")

    def kv_shape(self, dtype: str | None = None) -> KVShape:
        """Shape of the KV cache, stored in `dtype` (the dtype of the weights if None)."""
        return KVShape(self.layers, self.kv_heads, self.head_dim, dtype or self.dtype, self.checkpoint)

    def to_json(self) -> dict[str, Any]:
        """The dictionary that config.json of a converted checkpoint holds."""
        content = FORMAT | dataclasses.asdict(self)
        del content["checkpoint"]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ModelConfig":
        """Inverse of `to_json`.

        Raises:
            QEvictError: if `content` was not written by this version of the format.
        """
        stamp = {key: content.get(key) for key in FORMAT}
        if stamp != FORMAT:
            raise QEvictError(
                f"config.json is not of a qevict_jax checkpoint (it says {stamp}, this version reads "
                f"{FORMAT}); convert the model with `python -m convert SRC DST`"
            )
        fields: dict[str, Any] = {key: value for key, value in content.items() if key not in FORMAT}
        names = {field.name for field in dataclasses.fields(cls)} - {"checkpoint"}
        if fields.keys() != names:
            raise QEvictError(f"config.json: keys {sorted(fields.keys() ^ names)} are missing or unknown")
        if fields["rope_scaling"] is not None:
            fields["rope_scaling"] = RopeScaling(**fields["rope_scaling"])
        return cls(**fields)

    @classmethod
    def from_hf(cls, content: Mapping[str, Any]) -> "ModelConfig":
        """Reads config.json as transformers 4 or 5 writes it.

        Raises:
            QEvictError: a key is missing, or the model needs something that this library does not do
                (another architecture, sliding windows, another RoPE or activation, quantized weights).
        """
        architecture = content.get("model_type")
        if architecture not in ARCHITECTURES:
            raise QEvictError(f"model type {architecture!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
        content = _DEFAULTS[architecture] | dict(content)
        _refuse_unsupported(content)
        heads, hidden = _required(content, "num_attention_heads"), _required(content, "hidden_size")
        head_dim = content.get("head_dim")
        if head_dim is None:
            if hidden % heads:
                raise QEvictError(
                    f"config.json: hidden_size {hidden} is no multiple of num_attention_heads {heads}"
                    " and there is no head_dim"
                )
            head_dim = hidden // heads
        theta, scaling = _rope(content)
        return cls(
            architecture=architecture,
            layers=_required(content, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=content.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            mlp=_required(content, "intermediate_size"),
            vocab=_required(content, "vocab_size"),
            rope_theta=theta,
            rope_scaling=scaling,
            rms_eps=float(content.get("rms_norm_eps", 1e-6)),
            max_position=_required(content, "max_position_embeddings"),
            tie_embeddings=bool(content.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2",
            dtype=content.get("dtype") or content.get("torch_dtype") or "float32",
        )


def _required(content: Mapping[str, Any], key: str) -> int:
    value = content.get(key)
    if not isinstance(value, int) or value < 1:
        raise QEvictError(f"config.json: {key} must be a positive integer, got {value!r}")
    return value


def _refuse_unsupported(content: Mapping[str, Any]) -> None:
    quantization = content.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "unknown")
        raise QEvictError(
            f"the weights are quantized ({method}); convert the original 16- or 32-bit model, or a GGUF file"
        )
    activation = content.get("hidden_act", "silu")
    if activation != "silu":
        raise QEvictError(f"activation {activation!r} is not supported; supported: silu")
    for key in ("attention_bias", "mlp_bias"):
        if content.get(key):
            raise QEvictError(f"{key}: true is not supported for model type {content['model_type']!r}")
    window = _sliding_window(content)
    if window is not None and window < _required(content, "max_position_embeddings"):
        raise QEvictError(
            f"the model attends within a sliding window of {window} tokens, which is not supported; "
            "models without one work (Mistral from v0.2 on, Qwen2.5 with use_sliding_window: false)"
        )


def _sliding_window(content: Mapping[str, Any]) -> int | None:
    """Tokens that some layer can see, or None when all layers see everything."""
    window = content.get("sliding_window")
    if content["model_type"] == "llama" or window is None:
        return None
    if content["model_type"] == "mistral":
        return window
    kinds = content.get("layer_types")
    slides = kinds is None and content["max_window_layers"] < content.get("num_hidden_layers", 0)
    slides = slides or "sliding_attention" in (kinds or ())
    return window if content.get("use_sliding_window") and slides else None


def _rope(content: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling: ``rope_parameters`` of transformers 5, or ``rope_theta`` + ``rope_scaling`` of 4."""
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in rope.values()):
        raise QEvictError(f"RoPE parameters per kind of layer ({', '.join(rope)}) are not supported")
    theta = float(rope.get("rope_theta", content.get("rope_theta", 10000.0)))
    if (rope.get("partial_rotary_factor") or content.get("partial_rotary_factor") or 1.0) != 1.0:
        raise QEvictError("partial rotary embedding (partial_rotary_factor below 1) is not supported")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise QEvictError(f"RoPE type {kind!r} is not supported; supported: default, llama3")
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    missing = [key for key in keys if not isinstance(rope.get(key), int | float)]
    if missing:
        raise QEvictError(f"config.json: llama3 RoPE scaling lacks {', '.join(missing)}")
    factor, low, high, original = (rope[key] for key in keys)
    return theta, RopeScaling(float(factor), float(low), float(high), int(original))


# From the config.json that each model is published with.
_LLAMA_31_8B = ModelConfig(
    architecture="llama",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    mlp=14336,
    vocab=128256,
    rope_theta=5e5,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
    rms_eps=1e-5,
    max_position=131072,
    tie_embeddings=False,
    qkv_bias=False,
    dtype="bfloat16",
)
_QWEN_25_7B = ModelConfig(
    architecture="qwen2",
    layers=28,
    hidden=3584,
    heads=28,
    kv_heads=4,
    head_dim=128,
    mlp=18944,
    vocab=152064,
    rope_theta=1e6,
    rope_scaling=None,
    rms_eps=1e-6,
    max_position=32768,
    tie_embeddings=False,
    qkv_bias=True,
    dtype="bfloat16",
)
_MISTRAL_7B_V02 = dataclasses.replace(
    _LLAMA_31_8B, architecture="mistral", vocab=32000, rope_theta=1e6, rope_scaling=None, max_position=32768
)
NAMED_SHAPES: dict[str, ModelConfig] = {
    "llama-3.1-8b": _LLAMA_31_8B,
    "mistral-7b": _MISTRAL_7B_V02,
    "qwen2.5-7b": _QWEN_25_7B,
}
