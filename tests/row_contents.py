# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in the caches of token-level eviction and of StreamingLLM, read row by row with NumPy."""

from typing import Any

import numpy as np

from tests.float64_model import Context, Float64Model, rotate
from tests.tier_contents import numbers


def held_rows(cache: Any, layer: int, row: int) -> dict[tuple[int, int], int]:
    """(head, position) of every token in a row of the layer -> its row; fails if one is there twice."""
    layout = cache.layout
    kv_heads = layout.shape.kv_heads
    if cache.begin is not None:
        rows = np.arange(cache.begin[row, layer], cache.begin[row, layer + 1])
    else:
        rows = np.arange(layer * layout.rows, (layer + 1) * layout.rows)
    rows = rows[cache.position[row, rows] >= 0]
    if cache.owner is None:
        head = (rows - layer * layout.rows) % kv_heads
    else:
        owner = cache.owner[row, rows].astype(int)
        assert np.all(owner // kv_heads == layer), "a row of another layer"
        head = owner % kv_heads
    found = dict(zip(zip(head.tolist(), cache.position[row, rows].tolist(), strict=True), rows.tolist(), strict=True))
    assert len(found) == len(rows), "a token has two rows"
    return found


def ring_range(cache: Any, row: int) -> range:
    """Positions in the ring."""
    return range(int(cache.start[row]), int(cache.length[row]))


def rows_context(cache: Any, layer: int, row: int, model: Float64Model, dtype: str) -> tuple[Context, np.ndarray]:
    """All tokens that any head of one layer attends to, and which head holds which."""
    layout = cache.layout
    kv_heads, head_dim = layout.shape.kv_heads, layout.shape.head_dim
    held = held_rows(cache, layer, row)
    at = np.array(sorted({position for _, position in held} | set(ring_range(cache, row))), int)
    tokens = np.zeros((len(at), kv_heads, 2, head_dim))
    has = np.zeros((len(at), kv_heads), bool)
    for (head, position), index in held.items():
        column = np.searchsorted(at, position)
        tokens[column, head] = numbers(cache.rows[row, index], dtype).reshape(2, head_dim)
        has[column, head] = True
    for position in ring_range(cache, row):
        column = np.searchsorted(at, position)
        stored = numbers(cache.ring[layer, row, position % layout.ring], dtype)
        tokens[column], has[column] = stored.reshape(kv_heads, 2, head_dim), True
    return Context(tokens[:, :, 0], tokens[:, :, 1], at, has), at


def sink_and_ring_context(
    cache: Any, layer: int, row: int, model: Float64Model, dtype: str
) -> tuple[Context, np.ndarray]:
    """What the next query sees; sinks stand right before the oldest other token if positions are the cache's."""
    length, stored, layout = int(cache.length[row]), cache.tokens[layer, row], cache.layout
    sink, ring = layout.sink, layout.ring
    at = np.array([p for p in range(length) if p < sink or p > length - ring], int)
    rows = np.where(at < sink, at, sink + (at - sink) % ring)
    tokens = numbers(stored[rows], dtype).reshape(len(at), model.config.kv_heads, 2, model.config.head_dim)
    keys = tokens[:, :, 0]
    if layout.cache_positions:
        dropped = max(0, length - ring + 1 - sink)
        keys = np.where((at < sink)[:, None, None], rotate(keys, np.full(len(at), dropped), model.inv_freq), keys)
    return Context(keys, tokens[:, :, 1], at), at
