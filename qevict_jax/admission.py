# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The first assignment of tiers, after prefill: one layer's prompt goes in, its compressed cache comes out.

It runs inside the layer scan of prefill, so the full cache of all layers never exists.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.float_bits import to_bits
from qevict_jax.cache import PerWindow, TieredCache, TierLayout, local_positions
from qevict_jax.ranking import Ranking
from qevict_jax.windows import quantize


def aged_windows(layout: TierLayout, length: Int[Array, "B"]) -> Int[Array, "B"]:
    """Windows that have left the recent region of a row with n tokens."""
    return jnp.maximum(0, (length - layout.sink - layout.recent) // layout.window)


def admit(
    cache: TieredCache,
    layer: Int[Array, ""],
    tokens: Float[Array, "B S K_2_D"],
    window_mass: Float[Array, "B windows"],
    length: Int[Array, "B"],
    ranking: Ranking,
    inv_freq: Float[Array, "halfD"],
    bias: Float[Array, "K D"] | None,
) -> TieredCache:
    """Ranks the prompt's windows and writes one layer of an empty cache.

    Args:
        cache: the cache, this layer still empty; its ``length`` and ``aged`` are left to the caller.
        layer: index of the layer.
        tokens: keys after bias and RoPE, and values, of the prompt; rows are padded on the right.
        window_mass: start mass of every window of the prompt, those still in the ring and a partial last one included.
        length: n of each row.
        ranking: the ranking function.
        inv_freq: RoPE frequencies.
        bias: bias of this layer's key projection, or None.
    """
    layout = cache.layout
    batch, size, _ = tokens.shape
    rows = jnp.arange(batch)[:, None]
    aged = aged_windows(layout, length)

    # ring and sinks
    positions = local_positions(layout, aged)
    there = positions < length[:, None]
    local = jnp.where(there[..., None], tokens[rows, jnp.minimum(positions, size - 1)], 0)
    cache = replace(cache, local=cache.local.at[layer].set(to_bits(local, layout.shape.dtype)))

    count = window_mass.shape[1]
    score = ranking.start(window_mass)
    base = aged[:, None]
    ring_index = base + (jnp.arange(layout.ring_windows) - base) % layout.ring_windows
    ring = jnp.take_along_axis(score, jnp.minimum(ring_index, count - 1), axis=1)
    ring = jnp.where(ring_index < count, ring, 0.0)

    most = max(0, (size - layout.sink - layout.recent) // layout.window)  # windows that can have aged
    keep = min(layout.full_windows + layout.quant_windows, most)
    full_score = code_score = None
    if keep:
        starts = layout.sink + jnp.arange(most) * layout.window
        if ranking.keys is not None:
            within = tokens[:, layout.sink : layout.sink + most * layout.window]
            within = within.reshape(batch, most, layout.window, layout.shape.kv_heads, 2, -1)
            score = ranking.keys(within[..., 0, :])
        # windows stand in order of age, and top_k prefers the lower index among equals: the older window
        ranked = jnp.where(jnp.arange(most) < base, score[:, :most], -jnp.inf)
        best_score, best = jax.lax.top_k(ranked, keep)
        best = jnp.where(best < base, best, -1).astype(jnp.int32)
        best_score = jnp.where(best < 0, 0.0, best_score)

        def contents(windows: Int[Array, "B N"]) -> Array:
            offsets = starts[jnp.maximum(windows, 0)][..., None] + jnp.arange(layout.window)
            return tokens[rows[..., None], offsets]

        cut = min(layout.full_windows, keep)
        if layout.full_windows:
            windows = _pad(best[:, :cut], layout.full_windows, -1)
            full_score = _pad(best_score[:, :cut], layout.full_windows, 0.0)
            assert cache.full is not None and cache.full_window is not None
            cache = replace(
                cache,
                full=cache.full.at[layer, :, :cut].set(to_bits(contents(best[:, :cut]), layout.shape.dtype)),
                full_window=cache.full_window.at[layer].set(windows),
            )
        if layout.code_slots and keep > cut:
            codes = quantize(contents(best[:, cut:]), best[:, cut:], layout, inv_freq, bias)
            code_score = _pad(best_score[:, cut:], layout.code_slots, 0.0)
            assert cache.codes is not None and cache.code_window is not None
            cache = replace(
                cache,
                codes=jax.tree.map(lambda stack, made: stack.at[layer, :, : keep - cut].set(made), cache.codes, codes),
                code_window=cache.code_window.at[layer].set(_pad(best[:, cut:], layout.code_slots, -1)),
            )

    def write(stack: Array | None, made: Array | None) -> Array | None:
        return stack if stack is None or made is None else stack.at[layer].set(made)

    old = cache.score
    score = PerWindow(old.ring.at[layer].set(ring), write(old.full, full_score), write(old.quant, code_score))
    return replace(cache, score=score)


def _pad(x: Array, size: int, value: int | float) -> Array:
    return jnp.pad(x, ((0, 0), (0, size - x.shape[1])), constant_values=value)
