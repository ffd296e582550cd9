# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes for tests of decode attention, and random tiers of such a shape with garbage where nothing is valid."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from pallas_kernels.float_bits import to_bits
from pallas_kernels.tiered_decode_attention.base import Tiers
from qevict_jax.quant import quantize_windows

LAYERS, BATCH, LAYER = 2, 2, 1
SINK, RING_WINDOWS, PADDING = 3, 3, 2
LLAMA3 = (8.0, 1.0, 4.0, 64)


@dataclass(frozen=True)
class DecodeSpec:
    """Axis letters as everywhere; ``bias`` is the size of the key bias, 0 for none."""

    D: int = 16
    K: int = 2
    G: int = 2
    T: int = 1
    W: int = 8
    F: int = 3
    Q: int = 5
    bits: int = 2
    param_bits: int = 16
    bias: float = 0.0
    kv_dtype: str = "float32"
    theta: float = 10_000.0
    empty: bool = False  # no slot of any tier is valid


SPECS = {
    "D64_G3": DecodeSpec(D=64, K=3, G=3, bits=3, param_bits=8),
    "D80_G1": DecodeSpec(D=80, G=1, bits=4, param_bits=8, W=4),
    "D96_G4_T8": DecodeSpec(D=96, G=4, T=8),
    "D128_G7_bias": DecodeSpec(D=128, K=1, G=7, bits=3, bias=300.0, theta=1e6),
    "D256_G8": DecodeSpec(D=256, K=1, G=8, bits=2, param_bits=8, F=1, Q=2),
    "W16_T5_bfloat16": DecodeSpec(W=16, T=5, bits=3, param_bits=8, kv_dtype="bfloat16", theta=5e5),
    "W32_T32_bias": DecodeSpec(W=32, T=32, bits=4, bias=10.0, F=2, Q=3),
    "float16": DecodeSpec(kv_dtype="float16", bits=4),
    "no_full": DecodeSpec(F=0, param_bits=8, T=2),
    "no_codes": DecodeSpec(Q=0, T=2),
    "only_local": DecodeSpec(F=0, Q=0),
    "none_valid": DecodeSpec(empty=True, T=3),
}  # fmt: skip


@dataclass(frozen=True)
class DecodeCase:
    """Arguments of the kernel, and what its valid tokens are, per sequence: keys before RoPE and bias for codes."""

    q: np.ndarray
    q_positions: np.ndarray
    q_valid: np.ndarray
    tiers: Tiers
    inv_freq: np.ndarray
    key_bias: np.ndarray | None

    def arrays(self) -> tuple:
        """Positional arguments."""
        bias = None if self.key_bias is None else jnp.asarray(self.key_bias)
        queries = (jnp.asarray(x) for x in (self.q, self.q_positions, self.q_valid))
        return (*queries, self.tiers, jnp.int32(LAYER), jnp.asarray(self.inv_freq), bias)


def static(spec: DecodeSpec) -> dict:
    """Keyword arguments."""
    return {
        "kv_heads": spec.K,
        "window": spec.W,
        "ring": RING_WINDOWS * spec.W,
        "bits": spec.bits,
        "kv_dtype": spec.kv_dtype,
    }


def make_case(spec: DecodeSpec, seed: int = 0) -> DecodeCase:
    """Random arguments. Windows 0..F-1 and so on are scattered over slots; some slots hold NaN and are not valid."""
    random = np.random.default_rng(seed)
    ring = RING_WINDOWS * spec.W
    base = SINK + 10 * spec.W  # windows 0 to 9 have left the ring

    def rows(*axes: int) -> np.ndarray:
        return np.float32(random.normal(size=(LAYERS, BATCH, *axes, spec.K * 2 * spec.D)))

    local = rows(ring + SINK + PADDING)
    ring_positions = base + np.arange(ring)
    rest = np.concatenate([np.arange(SINK), np.full(PADDING, np.iinfo(np.int32).max)])
    positions = np.broadcast_to(np.concatenate([ring_positions, rest]), (BATCH, ring + SINK + PADDING))
    # the queries are the newest tokens; the second sequence is shorter and its last query is padding where T > 1
    newest = base + ring - 3 - np.array([0, spec.W])
    q_positions = newest[:, None] - spec.T + 1 + np.arange(spec.T)
    q_valid = np.ones((BATCH, spec.T), bool)
    if spec.T > 1:
        q_valid[1, -1] = False
    last = np.where(q_valid, q_positions, -1).max(axis=1)
    if spec.empty:
        q_positions = q_positions * 0 - 1
        last = np.full(BATCH, -1)
    local[:, positions > last[:, None]] = np.nan

    full = full_valid = None
    if spec.F:
        full = rows(spec.F, spec.W)
        full_valid = np.ones((BATCH, spec.F), bool) & (not spec.empty)
        full_valid[1, 0] = False
        full[:, ~full_valid] = np.nan
        full = to_bits(jnp.asarray(full), spec.kv_dtype)
    codes = starts = None
    if spec.Q:
        apart = [
            jnp.asarray(np.float32(random.normal(size=(LAYERS, BATCH, spec.Q, spec.W, spec.K, spec.D)))) for _ in "kv"
        ]
        codes = quantize_windows(*apart, bits=spec.bits, param_bits=spec.param_bits)
        windows = np.stack([random.permutation(9)[: spec.Q] for _ in range(BATCH)])
        starts = np.where(np.arange(spec.Q) == 1, -1, SINK + windows * spec.W)
        if spec.empty:
            starts = starts * 0 - 1
        codes = codes._replace(scalars=jnp.where((starts < 0)[..., None], jnp.uint16(0x7FC0), codes.scalars))
        starts = jnp.asarray(starts, jnp.int32)
    q = np.float32(random.normal(size=(BATCH, spec.T, spec.K * spec.G, spec.D))) * 1.5
    key_bias = None
    if spec.bias:
        key_bias = np.float32(random.normal(size=(spec.K, spec.D)) * spec.bias)
        q = q / spec.bias
    tiers = Tiers(
        local=to_bits(jnp.asarray(local), spec.kv_dtype),
        local_positions=jnp.asarray(positions, jnp.int32),
        full=full,
        full_valid=None if full_valid is None else jnp.asarray(full_valid),
        quantized=codes,
        quantized_starts=starts,
    )
    inv_freq = np.float32(spec.theta ** -(np.arange(0, spec.D, 2) / spec.D))
    return DecodeCase(q, np.int32(q_positions), q_valid, tiers, inv_freq, key_bias)
