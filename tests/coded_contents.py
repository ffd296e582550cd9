# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in the caches of KIVI, ZipCache and KVQuant: decoded in float64 from the description of their storage."""

from typing import Any

import numpy as np

from tests.float64_model import Context, Float64Model, rotate
from tests.kvquant_calibration import calibration
from tests.tier_contents import numbers

_PLANE_BITS = {2: (2,), 3: (2, 1), 4: (4,)}


def kivi_context(cache: Any, layer: int, row: int, model: Float64Model, dtype: str) -> tuple[Context, np.ndarray]:
    """Groups that have aged, then the ring; and the position of each token."""
    layout, aged, length = cache.layout, int(cache.aged[row]), int(cache.length[row])
    group = layout.options.group_size
    recent = _ring(cache.ring[layer, row], np.arange(aged * group, length), model, dtype)
    tokens = np.concatenate([kivi_groups(cache, layer, row)[: aged * group], recent])
    return Context(tokens[:, :, 0], tokens[:, :, 1], np.arange(length)), np.arange(length)


def kivi_groups(cache: Any, layer: int, row: int) -> np.ndarray:
    """``[S, K, 2, D]`` of all code slots."""
    layout = cache.layout
    if cache.codes is None:
        return np.zeros((0, layout.shape.kv_heads, 2, layout.shape.head_dim))
    group, heads, head_dim = layout.options.group_size, layout.shape.kv_heads, layout.shape.head_dim
    codes = codes_of(cache.codes.codes, layer, row, heads, head_dim, layout.options.bits)
    scale, low = half(cache.codes.key_params[layer, row]).reshape(-1, 2, heads, head_dim).swapaxes(0, 1)
    keys = codes[:, :, 0] * np.repeat(scale, group, axis=0) + np.repeat(low, group, axis=0)
    params = half(cache.codes.value_params[layer, row]).reshape(len(codes), 2, heads, -1)
    scale, low = (params[:, i][..., np.arange(head_dim) // group] for i in (0, 1))
    return np.stack([keys, codes[:, :, 1] * scale + low], axis=2)


def zipcache_context(cache: Any, layer: int, row: int, model: Float64Model, dtype: str) -> tuple[Context, np.ndarray]:
    """Both classes, then the ring. Which token a slot holds is not stored: those of codes all stand at position 0."""
    layout, stored, length = cache.layout, int(cache.stored[row]), int(cache.length[row])
    parts = [part[:used] for part, used in zip(zipcache_classes(cache, layer, row), layout.used(stored), strict=True)]
    recent = np.arange(stored, length)
    tokens = np.concatenate([*parts, _ring(cache.ring[layer, row], recent, model, dtype)])
    at = np.concatenate([np.zeros(stored, int), recent])
    return Context(tokens[:, :, 0], tokens[:, :, 1], at), at


def zipcache_classes(cache: Any, layer: int, row: int) -> list[np.ndarray]:
    """``[S, K, 2, D]`` of all slots of both classes."""
    layout, found = cache.layout, []
    heads, head_dim = layout.shape.kv_heads, layout.shape.head_dim
    for tokens, bits in zip(cache.classes, layout.bits, strict=True):
        codes = codes_of(tokens.codes, layer, row, heads, head_dim, bits)
        scale, low, unit = half(tokens.channels[layer, row]).reshape(3, heads, head_dim)
        step, lowest = half(tokens.slots[layer, row]).reshape(2, -1, 1, 1)
        found.append(np.stack([codes[:, :, 0] * scale + low, (codes[:, :, 1] * step + lowest) * unit], axis=2))
    return found


def kvquant_context(cache: Any, layer: int, row: int, model: Float64Model, dtype: str) -> tuple[Context, np.ndarray]:
    """Sinks, then codes; a query sees its own token as it is stored."""
    layout, length = cache.layout, int(cache.length[row])
    heads, head_dim = layout.shape.kv_heads, layout.shape.head_dim
    sinks = min(length, layout.sink)
    at = np.arange(length)
    tokens = np.zeros((length, heads, 2, head_dim))
    if sinks:
        tokens[:sinks] = numbers(cache.sinks[layer, row, :sinks], dtype).reshape(sinks, heads, 2, head_dim)
    keys, values = kvquant_codes(cache, layer, row, model)
    positions = at[sinks:]
    tokens[sinks:, :, 0] = rotate(keys[: length - sinks] + model.key_bias(layer), positions, model.inv_freq)
    tokens[sinks:, :, 1] = values[: length - sinks]
    return Context(tokens[:, :, 0], tokens[:, :, 1], at, own=False), at


def kvquant_codes(cache: Any, layer: int, row: int, model: Float64Model) -> tuple[np.ndarray, np.ndarray]:
    """Keys, before RoPE and bias, and values ``[S, K, D]`` of all code slots."""
    layout, made = cache.layout, calibration(model.config)
    heads, head_dim, outliers = layout.shape.kv_heads, layout.shape.head_dim, layout.outliers
    codes = codes_of(cache.codes.codes, layer, row, heads, head_dim, layout.bits)
    stored = cache.codes.numbers[layer, row]
    exact = half(stored[:, : 2 + 2 * outliers])
    low, high = np.float64(made.key_range[:, layer])
    poles = [np.float64(x[layout.bits][layer]) for x in (made.key_poles, made.value_poles)]
    keys = poles[0][codes[:, :, 0]] * ((high - low) / 2) + (high + low) / 2
    values = poles[1][codes[:, :, 1]] * exact[:, 1, None, None] + exact[:, 0, None, None]
    for part, first in ((keys, 0), (values, outliers)):
        flat = part.reshape(len(part), -1)
        index = stored[:, 2 + 2 * outliers + first :][:, :outliers].astype(int)
        np.put_along_axis(flat, index, exact[:, 2 + first :][:, :outliers], axis=1)
    return keys, values


def codes_of(planes: tuple, layer: int, row: int, kv_heads: int, head_dim: int, bits: int) -> np.ndarray:
    """``[S, K, 2, D]`` integer codes; lane w of channel block r stands where token w of channel r would in a window."""
    lanes = max(size for size in (4, 8, 16, 32) if head_dim % size == 0)
    total, low = None, 0
    for stored, plane_bits in zip(planes, _PLANE_BITS[bits], strict=True):
        words = stored[layer, row].astype(np.uint64)
        words = words.reshape(len(words), kv_heads, 2, -1, head_dim // lanes)
        per_word = lanes // words.shape[3]
        parts = [
            (words[..., lane // per_word, :] >> np.uint64(plane_bits * (lane % per_word)))
            & np.uint64(2**plane_bits - 1)
            for lane in range(lanes)
        ]
        part = np.stack(parts, axis=3).astype(np.int64) << low
        total, low = part if total is None else total + part, low + plane_bits
    return total.reshape(*total.shape[:3], head_dim)


def half(stored: np.ndarray) -> np.ndarray:
    """Float64 of stored float16."""
    return np.float64(stored.view(np.float16))


def _ring(ring: np.ndarray, positions: np.ndarray, model: Float64Model, dtype: str) -> np.ndarray:
    tokens = numbers(ring[positions % len(ring)], dtype)
    return tokens.reshape(len(positions), model.config.kv_heads, 2, model.config.head_dim)
