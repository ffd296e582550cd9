# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in a tiered cache, read slot by slot with NumPy: which windows, where, and with which keys and values."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.float64_model import Context, Float64Model, rotate
from tests.float64_quant import Decoded, decode


@dataclass(frozen=True)
class Slots:
    """Windows of one layer of one row, each with its slot."""

    full: dict[int, int]
    codes: dict[int, int]
    dormant: dict[int, int]


def slots(cache: Any, layer: int, row: int) -> Slots:
    """Where each window is; fails if one is twice in a tier."""
    full, codes, dormant = {}, {}, {}
    if cache.full_window is not None:
        full = _by_window(cache.full_window[layer, row])
    if cache.code_window is not None:
        codes = _by_window(cache.code_window[layer, row])
        if cache.dormant is not None:
            asleep = cache.dormant[layer, row]
            dormant = {window: slot for window, slot in codes.items() if asleep[slot]}
            codes = {window: slot for window, slot in codes.items() if not asleep[slot]}
    return Slots(full, codes, dormant)


def _by_window(index: np.ndarray) -> dict[int, int]:
    found = {int(window): slot for slot, window in enumerate(index) if window >= 0}
    assert len(found) == np.sum(index >= 0), f"a window has two slots: {index}"
    return found


def decoded(cache: Any, layer: int, row: int, slot: int) -> Decoded:
    """The codes of one slot."""
    layout = cache.layout
    codes, key_params, scalars = (jax.tree.map(lambda x: x[layer, row, slot], part) for part in cache.codes)
    return decode(codes, key_params, scalars, layout.window, layout.shape.kv_heads, layout.bits)


def code_row(cache: Any, layer: int, row: int, slot: int) -> bytes:
    """Every bit that is stored in one code slot."""
    return b"".join(np.ascontiguousarray(x[layer, row, slot]).tobytes() for x in jax.tree.leaves(cache.codes))


def full_tokens(cache: Any, layer: int, row: int, slot: int) -> np.ndarray:
    """``[W, K, 2, D]`` of a full slot."""
    return _apart(cache.full[layer, row, slot], cache.layout)


def ring_tokens(cache: Any, layer: int, row: int, positions: np.ndarray) -> np.ndarray:
    """``[positions, K, 2, D]`` of tokens in ring or sinks."""
    layout = cache.layout
    rows = np.where(positions < layout.sink, layout.ring + positions, (positions - layout.sink) % max(1, layout.ring))
    return _apart(cache.local[layer, row, rows], layout)


def window_positions(layout: Any, window: int) -> np.ndarray:
    """Positions of the tokens of a window."""
    return layout.sink + window * layout.window + np.arange(layout.window)


def local_tokens(cache: Any, row: int) -> np.ndarray:
    """Positions of the sinks and of the tokens that have not left the ring."""
    layout, length = cache.layout, int(cache.length[row])
    first = layout.sink + int(cache.aged[row]) * layout.window
    return np.concatenate([np.arange(min(layout.sink, length)), np.arange(min(first, length), length)])


def context(cache: Any, layer: int, row: int, model: Float64Model, dtype: str) -> tuple[Context, np.ndarray]:
    """Everything that one layer of one row attends to, and the window of each token (-1 for a sink)."""
    layout = cache.layout
    found = slots(cache, layer, row)
    local = local_tokens(cache, row)
    tokens = [ring_tokens(cache, layer, row, local)]
    positions = [local]
    for window, slot in found.full.items():
        tokens.append(full_tokens(cache, layer, row, slot))
        positions.append(window_positions(layout, window))
    for window, slot in found.codes.items():
        tokens.append(restored(decoded(cache, layer, row, slot), layer, window_positions(layout, window), model))
        positions.append(window_positions(layout, window))
    tokens, at = np.concatenate(tokens), np.concatenate(positions)
    owner = np.where(at < layout.sink, -1, (at - layout.sink) // layout.window)
    return Context(tokens[:, :, 0], tokens[:, :, 1], at), owner


def restored(window: Decoded, layer: int, positions: np.ndarray, model: Float64Model) -> np.ndarray:
    """``[W, K, 2, D]`` of a dequantized window, bias and RoPE on its keys."""
    keys = rotate(window.keys + model.key_bias(layer), positions, model.inv_freq)
    return np.stack([keys, window.values], axis=2)


def _apart(rows: np.ndarray, layout: Any) -> np.ndarray:
    apart = numbers(rows, layout.shape.dtype)
    return apart.reshape(len(rows), layout.shape.kv_heads, 2, layout.shape.head_dim)


def numbers(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Float64 of stored floats; 16-bit ones are stored as their bits."""
    return np.float64(np.float32(stored.view(jnp.dtype(dtype))))
