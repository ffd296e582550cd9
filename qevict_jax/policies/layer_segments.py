# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of one array that layers share in unequal parts: brought together once, when a prompt has been read."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array

from qevict_jax.policies.token_rows import TokenRows


def group_by_layer(cache: TokenRows) -> TokenRows:
    """The cache with its rows sorted by layer, and ``begin`` set to where each layer's lie.

    Rows that are empty, after a prompt that is shorter than the cache, go to layers in proportion to the room below
    ``layout.most`` that they have. Takes the memory of the rows a second time while it runs.
    """
    layout = cache.layout
    layers, kv_heads = layout.shape.layers, layout.shape.kv_heads
    batch, total = cache.position.shape
    assert cache.owner is not None
    used = cache.position >= 0
    layer = jnp.where(used, cache.owner.astype(jnp.int32) // kv_heads, layers)
    counts = jax.vmap(lambda x: jnp.zeros((layers + 1,), jnp.int32).at[x].add(1))(layer)
    held, empty = counts[:, :layers], counts[:, layers:]
    room = layout.most - held
    # just below the true share, so that rounding never gives more than there is
    share = empty.astype(jnp.float32) / jnp.maximum(1, room.sum(axis=1, keepdims=True)).astype(jnp.float32)
    extra = jnp.floor(room.astype(jnp.float32) * share * (1 - 1e-6)).astype(jnp.int32)
    end = jnp.cumsum(held + extra, axis=1)
    begin = jnp.concatenate([jnp.zeros((batch, 1), jnp.int32), end], axis=1)
    order = jnp.argsort(layer, axis=1, stable=True)  # row of the old order at each place of the new one
    before = jnp.cumsum(held, axis=1) - held
    sorted_layer = jnp.take_along_axis(layer, order, axis=1)
    column = jnp.minimum(sorted_layer, layers - 1)
    within = jnp.arange(total, dtype=jnp.int32) - jnp.take_along_axis(before, column, axis=1)
    target = jnp.where(sorted_layer < layers, jnp.take_along_axis(begin, column, axis=1) + within, total)
    source = jnp.full((batch, total), -1, jnp.int32)
    source = source.at[jnp.arange(batch)[:, None], target].set(order.astype(jnp.int32), mode="drop")

    def moved(x: Array, empty_value: int = 0) -> Array:
        index = jnp.maximum(source, 0)
        there = source >= 0
        if x.ndim == 3:
            index, there = index[..., None], there[..., None]
        return jnp.where(there, jnp.take_along_axis(x, index, axis=1), jnp.asarray(empty_value, x.dtype))

    return replace(
        cache,
        rows=moved(cache.rows),
        position=moved(cache.position, -1),
        score=moved(cache.score),
        weight=None if cache.weight is None else moved(cache.weight),
        owner=moved(cache.owner),
        pinned=None if cache.pinned is None else jnp.zeros_like(cache.pinned),
        begin=begin,
    )
