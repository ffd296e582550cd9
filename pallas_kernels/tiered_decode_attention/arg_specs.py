# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The shapes that every implementation is tested, measured and compiled at, and arguments of such a shape."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.float_bits import to_bits
from pallas_kernels.packing import planes
from pallas_kernels.quantized_windows import QuantizedWindows, scalars_per_head
from pallas_kernels.tiered_decode_attention.base import Tiers

_NAN_BITS = 0x7FC0  # of bfloat16


@dataclass(frozen=True)
class DecodeSpec:
    """A shape; axis letters as everywhere.

    Attributes:
        ring_windows: windows in the ring.
        sink: sink tokens.
        padding: rows of ``local`` behind ring and sinks.
        scalar_row: P, 0 for no more than the numbers take.
        bias: size of the key bias, 0 for none.
        theta: base of the RoPE frequencies.
        llama3: whether those are scaled as in Llama 3.1.
        empty: no slot of any tier is valid.
    """

    D: int = 16
    K: int = 2
    G: int = 2
    T: int = 1
    W: int = 8
    F: int = 3
    Q: int = 5
    L: int = 2
    B: int = 2
    bits: int = 2
    param_bits: int = 16
    ring_windows: int = 3
    sink: int = 3
    padding: int = 2
    scalar_row: int = 0
    bias: float = 0.0
    kv_dtype: str = "float32"
    theta: float = 10_000.0
    llama3: bool = False
    empty: bool = False

    @property
    def layer(self) -> int:
        """The layer that is attended to: the last."""
        return self.L - 1

    @property
    def ring(self) -> int:
        """R."""
        return self.ring_windows * self.W

    @property
    def local_rows(self) -> int:
        """Rows of ``local``."""
        return self.ring + self.sink + self.padding


SPECS = {
    "D64_G3": DecodeSpec(D=64, K=3, G=3, bits=3, param_bits=8),
    "D80_G1": DecodeSpec(D=80, G=1, bits=4, param_bits=8, W=4),
    "D96_G4_T8": DecodeSpec(D=96, G=4, T=8),
    "D128_G7_bias": DecodeSpec(D=128, K=1, G=7, bits=3, bias=300.0, theta=1e6),
    "D128_G5_llama3": DecodeSpec(D=128, K=2, G=5, bits=2, param_bits=8, theta=5e5, llama3=True, Q=9),
    "D256_G8": DecodeSpec(D=256, K=1, G=8, bits=2, param_bits=8, F=1, Q=2),
    "W16_T5_bfloat16": DecodeSpec(W=16, T=5, bits=3, param_bits=8, kv_dtype="bfloat16", theta=5e5),
    "W32_T32_bias": DecodeSpec(W=32, T=32, bits=4, bias=10.0, F=2, Q=3),
    "W4_INT3_G6": DecodeSpec(W=4, bits=3, G=6, Q=11, K=1, kv_dtype="bfloat16"),
    "float16": DecodeSpec(kv_dtype="float16", bits=4),
    "many": DecodeSpec(D=64, K=2, G=4, F=17, Q=70, bits=3, param_bits=8, kv_dtype="bfloat16"),
    "no_full": DecodeSpec(F=0, param_bits=8, T=2),
    "no_codes": DecodeSpec(Q=0, T=2),
    "only_local": DecodeSpec(F=0, Q=0),
    "none_valid": DecodeSpec(empty=True, T=3),
}

_TUNED: dict[str, Any] = {"bits": 3, "param_bits": 8, "ring_windows": 4, "padding": 3, "F": 0}
_TUNED_16: dict[str, Any] = _TUNED | {"W": 16, "ring_windows": 3}
_PAPER: dict[str, Any] = {"bits": 2, "param_bits": 16, "ring_windows": 6, "padding": 3}
_LLAMA: dict[str, Any] = {"D": 128, "K": 8, "G": 4, "L": 32, "B": 1, "theta": 5e5, "llama3": True}
_MISTRAL: dict[str, Any] = {"D": 128, "K": 8, "G": 4, "L": 32, "B": 1, "theta": 1e6}
_QWEN: dict[str, Any] = {"D": 128, "K": 4, "G": 7, "L": 28, "B": 1, "theta": 1e6, "bias": 300.0}
_SMOL: dict[str, Any] = {"D": 64, "K": 3, "G": 3, "L": 30, "B": 1, "theta": 1e5}


def _model(model: dict, preset: dict, **sizes: Any) -> DecodeSpec:
    return DecodeSpec(**(model | preset | {"sink": 5, "kv_dtype": "bfloat16"} | sizes))


# What `plan_cache` makes of 20% of the full cache on TPU, at 32,768 tokens unless the name says otherwise.
MODEL_SPECS = {
    "llama_tuned": _model(_LLAMA, _TUNED, Q=3056, scalar_row=256),
    "llama_tuned_w16": _model(_LLAMA, _TUNED_16, F=40, Q=1584, scalar_row=384),
    "llama_tuned_w32_int4": _model(_LLAMA, _TUNED, W=32, bits=4, ring_windows=3, Q=728, scalar_row=640),
    "llama_paper": _model(_LLAMA, _PAPER, F=193, Q=2392, scalar_row=128),
    "llama_int2": _model(_LLAMA, _TUNED, bits=2, Q=4096, scalar_row=256),
    "llama_1280_batch32": _model(_LLAMA, _TUNED, B=32, Q=88, scalar_row=256),
    "llama_chunk": _model(_LLAMA, _TUNED, T=8, Q=3056, scalar_row=256),
    "mistral_paper": _model(_MISTRAL, _PAPER, F=193, Q=2392, scalar_row=128),
    "qwen_tuned": _model(_QWEN, _TUNED, Q=3056, scalar_row=128),
    "qwen_paper": _model(_QWEN, _PAPER, F=192, Q=2320, scalar_row=128),
    "smollm2_8k_tuned": _model(_SMOL, _TUNED, Q=680, scalar_row=128),
    "smollm2_8k_paper": _model(_SMOL, _PAPER, F=45, Q=520, scalar_row=128),
}


def static_args(spec: DecodeSpec) -> dict[str, Any]:
    """Keyword arguments that all implementations share."""
    return {"kv_heads": spec.K, "window": spec.W, "ring": spec.ring, "bits": spec.bits, "kv_dtype": spec.kv_dtype}


def abstract_args(spec: DecodeSpec) -> tuple:
    """Positional arguments as `jax.ShapeDtypeStruct`: nothing is allocated."""
    lead, row = (spec.L, spec.B), spec.K * 2 * spec.D
    kv_dtype = jnp.uint16 if jnp.dtype(spec.kv_dtype).itemsize == 2 else spec.kv_dtype

    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    quantized = starts = None
    if spec.Q:
        quantized = QuantizedWindows(
            codes=tuple(array(p.dtype, *lead, spec.Q, p.words * row) for p in planes(spec.bits, spec.W)),
            key_params=array("uint16" if spec.param_bits == 8 else "uint32", *lead, spec.Q, spec.K * spec.D),
            scalars=array("uint16", *lead, spec.Q, spec.scalar_row or _numbers(spec)),
        )
        starts = array("int32", spec.B, spec.Q)
    tiers = Tiers(
        local=array(kv_dtype, *lead, spec.local_rows, row),
        local_positions=array("int32", spec.B, spec.local_rows),
        full=array(kv_dtype, *lead, spec.F, spec.W, row) if spec.F else None,
        full_valid=array("bool", spec.B, spec.F) if spec.F else None,
        quantized=quantized,
        quantized_starts=starts,
    )
    return (
        array("float32", spec.B, spec.T, spec.K * spec.G, spec.D),
        array("int32", spec.B, spec.T),
        array("bool", spec.B, spec.T),
        tiers,
        array("int32"),
        array("float32", spec.D // 2),
        array("float32", spec.K, spec.D) if spec.bias else None,
    )


def random_args(spec: DecodeSpec, seed: int = 0) -> tuple:
    """Random positional arguments of that shape.

    Queries are the newest tokens; the second sequence is shorter, and its last query is padding where T > 1. Windows
    are scattered over slots. What is not valid (rows beyond the newest token, one full and one code slot, padding)
    holds NaN, and its codes are random words.
    """
    random = np.random.default_rng(seed)
    base = spec.sink + (spec.Q + 4) * spec.W  # all windows before it have left the ring

    def rows(*axes: int) -> np.ndarray:
        return random.normal(size=(spec.L, spec.B, *axes, spec.K * 2 * spec.D)).astype(np.float32)

    rest = np.concatenate([np.arange(spec.sink), np.full(spec.padding, np.iinfo(np.int32).max)])
    positions = np.broadcast_to(np.concatenate([base + np.arange(spec.ring), rest]), (spec.B, spec.local_rows))
    newest = base + spec.ring - 3 - spec.W * (np.arange(spec.B) % 2)
    q_positions = newest[:, None] - spec.T + 1 + np.arange(spec.T)
    q_valid = np.ones((spec.B, spec.T), bool)
    if spec.T > 1:
        q_valid[1::2, -1] = False
    if spec.empty:
        q_positions = np.full_like(q_positions, -1)
    last = np.where(q_valid, q_positions, -1).max(axis=1)
    local = rows(spec.local_rows)
    local[:, positions > last[:, None]] = np.nan

    full = full_valid = None
    if spec.F:
        full = rows(spec.F, spec.W)
        full_valid = np.full((spec.B, spec.F), not spec.empty)
        full_valid[1::2, 0] = False
        full[:, ~full_valid] = np.nan
        full, full_valid = to_bits(jnp.asarray(full), spec.kv_dtype), jnp.asarray(full_valid)

    quantized = starts = None
    if spec.Q:
        windows = np.stack([random.permutation(spec.Q + 4)[: spec.Q] for _ in range(spec.B)])
        unused = (np.arange(spec.Q) == 1) | spec.empty
        starts = np.where(unused, -1, spec.sink + windows * spec.W)
        quantized = _random_codes(spec, random, unused)
        starts = jnp.asarray(starts, jnp.int32)

    q = np.float32(random.normal(size=(spec.B, spec.T, spec.K * spec.G, spec.D))) * 1.5
    key_bias = None
    if spec.bias:
        key_bias = jnp.asarray(random.normal(size=(spec.K, spec.D)) * spec.bias, jnp.float32)
        q = q / spec.bias
    tiers = Tiers(
        local=to_bits(jnp.asarray(local), spec.kv_dtype),
        local_positions=jnp.asarray(positions, jnp.int32),
        full=full,
        full_valid=full_valid,
        quantized=quantized,
        quantized_starts=starts,
    )
    return (
        jnp.asarray(q),
        jnp.asarray(q_positions, jnp.int32),
        jnp.asarray(q_valid),
        tiers,
        jnp.int32(spec.layer),
        jnp.asarray(inverse_frequencies(spec)),
        key_bias,
    )


def inverse_frequencies(spec: DecodeSpec) -> np.ndarray:
    """RoPE frequencies ``[D/2]``, float32; with ``llama3`` the slow ones are divided by 8 as in that model."""
    frequencies = spec.theta ** -(np.arange(0, spec.D, 2) / spec.D)
    if spec.llama3:
        turns = 8192 * frequencies / (2 * np.pi)  # in the context the model was first trained with
        smooth = np.clip((turns - 1) / (4 - 1), 0, 1)
        frequencies = (1 - smooth) * frequencies / 8 + smooth * frequencies
    return np.asarray(frequencies, np.float32)


def _numbers(spec: DecodeSpec) -> int:
    return spec.K * scalars_per_head(spec.W, spec.param_bits)


def _random_codes(spec: DecodeSpec, random: np.random.Generator, unused: np.ndarray) -> QuantizedWindows:
    """Random words are random codes; parameters make keys and values of about unit size."""
    lead, row = (spec.L, spec.B, spec.Q), spec.K * 2 * spec.D
    top = 2**spec.bits - 1

    def bits(x: np.ndarray) -> np.ndarray:
        return np.asarray(to_bits(jnp.asarray(x, jnp.float32), "bfloat16"))

    codes = tuple(
        jnp.asarray(random.integers(0, np.iinfo(p.dtype).max, (*lead, p.words * row), p.dtype, endpoint=True))
        for p in planes(spec.bits, spec.W)
    )
    tokens = (*lead, spec.K, spec.W)
    numbers = [random.uniform(1.0, 4.0, tokens) / top, -random.uniform(0.5, 2.0, tokens)]
    channels = (*lead, spec.K * spec.D)
    if spec.param_bits == 8:
        key_params = random.integers(0, 2**16, channels, np.uint16)
        lowest, step = [0.5 / top, -2.0], [3.0 / top / 255, 1.5 / 255]
        spread = random.uniform(0.7, 1.3, (*lead, spec.K, 4))
        numbers.append(spread * np.array([lowest[0], step[0], lowest[1], step[1]]))
    else:
        scale = bits(random.uniform(1.0, 4.0, channels) / top).astype(np.uint32)
        key_params = scale | (bits(-random.uniform(0.5, 2.0, channels)).astype(np.uint32) << 16)
    scalars = bits(np.concatenate(numbers, axis=-1).reshape(*lead, -1))
    scalars = np.where(unused[:, None], np.uint16(_NAN_BITS), scalars)
    if spec.param_bits == 16:
        key_params = np.where(unused[:, None], np.uint32(_NAN_BITS << 16 | _NAN_BITS), key_params)
    padding = (spec.scalar_row or scalars.shape[-1]) - scalars.shape[-1]
    scalars = np.pad(scalars, ((0, 0),) * 3 + ((0, padding),), constant_values=np.uint16(_NAN_BITS))
    return QuantizedWindows(codes, jnp.asarray(key_params), jnp.asarray(scalars))
