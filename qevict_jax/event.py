# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A routing event on the whole cache: decide for all layers at once, then move bytes layer by layer.

Every write is bounded and slot-stable: gather what moves, pass an optimization barrier so that reads stay before
writes, scatter with out-of-range indices for what does not move. No tier is ever copied or selected over.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from pallas_kernels.float_bits import from_bits, to_bits
from qevict_jax.cache import PerWindow, TieredCache
from qevict_jax.ranking import Ranking
from qevict_jax.routing import Event, Moves, Slots, route_exact, route_ranked
from qevict_jax.windows import KeyTransform, quantize, restore

Decide = Callable[[Slots, Event], tuple[Slots, Moves]]


def route(cache: TieredCache, ranking: Ranking, transform: KeyTransform, decide: Decide | None = None) -> TieredCache:
    """One routing event for every layer and row (paper algorithm 1); at most one window has left each row's ring.

    Args:
        cache: the cache.
        ranking: the ranking function.
        transform: RoPE and key bias.
        decide: which windows move, for one layer of one row; default is what the layout's residency says.
    """
    layout = cache.layout
    cache = _close_scores(cache, ranking)
    ready = jnp.maximum(0, (cache.length - layout.sink - layout.recent) // layout.window)
    arrives = ready > cache.aged
    ring_window = cache.aged % layout.ring_windows  # where the oldest window lies in the ring

    new_score = cache.score.ring[:, jnp.arange(arrives.shape[0]), ring_window]
    if (of_keys := ranking.keys) is not None:
        new_score = jax.vmap(lambda local: of_keys(_ring_keys(local, cache, ring_window)))(cache.local)
    new_window = jnp.broadcast_to(jnp.where(arrives, cache.aged, -1), new_score.shape)
    if decide is None:
        decide = partial(route_ranked, quant_windows=layout.quant_windows) if layout.ranked else route_exact
    slots, moves = jax.vmap(jax.vmap(decide))(_slots(cache), Event(new_window, new_score))
    cache = _move(cache, moves, new_window, transform)

    ring = cache.score.ring
    rows = jnp.where(arrives, ring_window, layout.ring_windows)  # the place is free for a window yet to come
    ring = ring.at[:, jnp.arange(rows.shape[0]), rows].set(0.0, mode="drop")
    return replace(
        cache,
        full_window=slots.full_window if layout.full_windows else None,
        code_window=slots.code_window if layout.code_slots else None,
        dormant=slots.dormant if cache.dormant is not None else None,
        score=PerWindow(
            ring,
            slots.full_score if layout.full_windows else None,
            slots.code_score if layout.code_slots else None,
        ),
        aged=cache.aged + arrives.astype(jnp.int32),
    )


def _close_scores(cache: TieredCache, ranking: Ranking) -> TieredCache:
    """Folds the mass since the last event into the scores, for rankings that wait for events."""
    if ranking.event is None or cache.mass is None:
        return cache
    event = ranking.event
    # a row that was fed has given mass to some window; what an inactive row remembers must not fade
    fed = jnp.stack([(mass > 0).any(axis=-1) for mass in jax.tree.leaves(cache.mass)]).any(axis=0)[..., None]
    return replace(
        cache,
        score=jax.tree.map(lambda score, mass: jnp.where(fed, event(score, mass), score), cache.score, cache.mass),
        mass=jax.tree.map(jnp.zeros_like, cache.mass),
    )


def _slots(cache: TieredCache) -> Slots:
    lead = cache.score.ring.shape[:2]
    nothing = jnp.zeros((*lead, 0))
    none = nothing.astype(jnp.int32)
    code_window = none if cache.code_window is None else cache.code_window
    return Slots(
        full_window=none if cache.full_window is None else cache.full_window,
        full_score=nothing if cache.score.full is None else cache.score.full,
        code_window=code_window,
        code_score=nothing if cache.score.quant is None else cache.score.quant,
        dormant=jnp.zeros(code_window.shape, bool) if cache.dormant is None else cache.dormant,
    )


def _ring_rows(layout, ring_window: Int[Array, "B"]) -> Int[Array, "B W"]:
    return ring_window[:, None] * layout.window + jnp.arange(layout.window, dtype=jnp.int32)


def _ring_keys(local: Array, cache: TieredCache, ring_window: Int[Array, "B"]) -> Array:
    layout = cache.layout
    tokens = jnp.take_along_axis(local, _ring_rows(layout, ring_window)[..., None], axis=1)
    tokens = from_bits(tokens, layout.shape.dtype)
    return tokens.reshape(*tokens.shape[:2], layout.shape.kv_heads, 2, -1)[..., 0, :]


def _after(slot: Int[Array, "B n"], made: Any) -> Int[Array, "B n"]:
    """The slots, unchanged, but only known once everything in ``made`` has been computed.

    A write that depends on what was made from a read of the same array stays behind that read, and the array in place.
    XLA:CPU drops optimization barriers before it looks for such hazards, and would copy the whole tier (LOG.md).
    """
    for part in jax.tree.leaves(made):
        word = part.reshape(slot.shape[0], -1)[:, :1]
        if word.dtype == jnp.float32:
            word = lax.bitcast_convert_type(word, jnp.uint32)
        slot = slot + jnp.minimum((word >> 1).astype(jnp.int32), 0)  # zero, which XLA does not find out
    return slot


def _move(cache: TieredCache, moves: Moves, new_window: Int[Array, "L B"], transform: KeyTransform) -> TieredCache:
    layout = cache.layout
    batch = jnp.arange(new_window.shape[1])[:, None]
    ring_rows = _ring_rows(layout, cache.aged % layout.ring_windows)

    def one_layer(layer: Array, tiers: tuple) -> tuple:
        full, codes = tiers
        bias = None if transform.bias is None else transform.bias[layer]
        move = jax.tree.map(lambda x: x[layer], moves)
        # the whole window from the ring, as one more source behind the slots
        fresh = cache.local[layer, batch, ring_rows][:, None]

        to_write = None
        if codes is not None:
            tokens, windows = fresh, new_window[layer][:, None]
            if full is not None:
                assert cache.full_window is not None
                source = jnp.minimum(move.code_source, layout.full_windows - 1)
                from_ring = move.code_source == layout.full_windows
                tokens = jnp.where(from_ring[..., None, None], fresh, full[layer, batch, source])
                old = jnp.take_along_axis(cache.full_window[layer], source, axis=1)
                windows = jnp.where(from_ring, windows, old)
            numbers = from_bits(tokens, layout.shape.dtype)
            to_write = quantize(numbers, windows, layout, transform.inv_freq, bias)

        to_fill = None
        if full is not None:
            to_fill = jnp.broadcast_to(fresh, (*move.full_slot.shape, *fresh.shape[2:]))
            if layout.ranked:
                assert cache.code_window is not None
                source = jnp.minimum(move.full_source, layout.code_slots - 1)
                promoted = jax.tree.map(lambda stack: stack[layer, batch, source], codes)
                windows = jnp.take_along_axis(cache.code_window[layer], source, axis=1)
                tokens = restore(promoted, windows, layout, transform.inv_freq, bias)
                tokens = to_bits(tokens, layout.shape.dtype)
                from_ring = move.full_source == layout.code_slots
                to_fill = jnp.where(from_ring[..., None, None], to_fill, tokens)

        to_write, to_fill = lax.optimization_barrier((to_write, to_fill))
        if codes is not None:
            slot = _after(move.code_slot, to_fill)
            codes = jax.tree.map(
                lambda stack, rows: stack.at[layer, batch, slot].set(rows, mode="drop"), codes, to_write
            )
        if full is not None:
            slot = _after(move.full_slot, to_write)
            full = full.at[layer, batch, slot].set(to_fill, mode="drop")
        return full, codes

    full, codes = lax.fori_loop(0, layout.shape.layers, one_layer, (cache.full, cache.codes))
    return replace(cache, full=full, codes=codes)
