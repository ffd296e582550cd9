# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Quantized windows in plain NumPy and float64: the bit layout and the min-max rule, read from their descriptions."""

from typing import NamedTuple

import ml_dtypes
import numpy as np

_PLANE_BITS = {2: (2,), 3: (2, 1), 4: (4,)}


class Decoded(NamedTuple):
    """One window: integer codes and their parameters, ready to multiply. Keys before RoPE and bias."""

    key_codes: np.ndarray  # [W, K, D]
    key_scale: np.ndarray  # [K, D]
    key_offset: np.ndarray  # [K, D]
    value_codes: np.ndarray  # [W, K, D]
    value_scale: np.ndarray  # [W, K]
    value_offset: np.ndarray  # [W, K]

    @property
    def keys(self) -> np.ndarray:
        """``[W, K, D]``."""
        return self.key_codes * self.key_scale + self.key_offset

    @property
    def values(self) -> np.ndarray:
        """``[W, K, D]``."""
        return self.value_codes * self.value_scale[..., None] + self.value_offset[..., None]


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16."""
    return np.float64(np.float32(x).astype(ml_dtypes.bfloat16))


def decode(codes: tuple, key_params: np.ndarray, scalars: np.ndarray, window: int, kv_heads: int, bits: int) -> Decoded:
    """One slot of stored arrays."""
    channels = 2 * len(key_params)
    total, low = np.zeros((window, channels), np.int64), 0
    for words, plane_bits in zip(codes, _PLANE_BITS[bits], strict=True):
        words = np.asarray(words).astype(np.uint64).reshape(-1, channels)
        per_word = window // len(words)
        for token in range(window):
            word = words[token // per_word]
            part = (word >> np.uint64(plane_bits * (token % per_word))) & np.uint64(2**plane_bits - 1)
            total[token] += part.astype(np.int64) << low
        low += plane_bits
    apart = total.reshape(window, kv_heads, 2, -1)
    by_bytes = key_params.dtype == np.uint16
    per_head = 2 * window + 4 * by_bytes
    numbers = np.float64(np.float32(scalars.view(ml_dtypes.bfloat16)))[: kv_heads * per_head].reshape(
        kv_heads, per_head
    )
    params = key_params.reshape(kv_heads, -1)
    if by_bytes:
        lowest_scale, step_scale, lowest_offset, step_offset = (numbers[:, 2 * window + i, None] for i in range(4))
        scale = lowest_scale + step_scale * (params & 0xFF)
        offset = lowest_offset + step_offset * (params >> 8)
    else:
        halves = [(params & 0xFFFF).astype(np.uint16), (params >> 16).astype(np.uint16)]
        scale, offset = (np.float64(np.float32(half.view(ml_dtypes.bfloat16))) for half in halves)
    return Decoded(
        apart[:, :, 0], scale, offset, apart[:, :, 1], numbers[:, :window].T, numbers[:, window : 2 * window].T
    )


def quantize(keys: np.ndarray, values: np.ndarray, bits: int, param_bits: int) -> Decoded:
    """What codes and parameters a window ``[W, K, D]`` should get."""
    top = 2**bits - 1
    offset, scale = keys.min(axis=0), (keys.max(axis=0) - keys.min(axis=0)) / top
    if param_bits == 16:
        scale, offset = bfloat16(scale), bfloat16(offset)
    else:
        scale, offset = _through_bytes(scale), _through_bytes(offset)
    value_offset = bfloat16(values.min(axis=-1))
    value_scale = bfloat16((values.max(axis=-1) - values.min(axis=-1)) / top)
    value_codes = _codes(values, value_scale[..., None], value_offset[..., None], top)
    return Decoded(_codes(keys, scale, offset, top), scale, offset, value_codes, value_scale, value_offset)


def _codes(x: np.ndarray, scale: np.ndarray, offset: np.ndarray, top: int) -> np.ndarray:
    safe = np.where(scale == 0, 1, scale)
    return np.where(scale == 0, 0, np.clip(np.round((x - offset) / safe), 0, top)).astype(np.int64)


def _through_bytes(x: np.ndarray) -> np.ndarray:
    """``[K, D]`` as bytes between the lowest and the highest of each head."""
    low = bfloat16(x.min(axis=-1, keepdims=True))
    step = bfloat16((x.max(axis=-1, keepdims=True) - low) / 255)
    return low + step * _codes(x, step, low, 255)
