# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Which tokens of which heads stay: ranks within heads or over all of them, and places for those that come.

Protection is a mask that ranks before any score, never a large score: a tie could not evict a protected token.
Functions are for one sequence; the caller maps them over the batch.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def ranks(
    score: Float[Array, "n"],
    valid: Bool[Array, "n"],
    first: Bool[Array, "n"] | None = None,
    group: Int[Array, "n"] | None = None,
) -> Int[Array, "n"]:
    """Place of every entry in the order of falling score, 0 for the best; equals in the order in which they stand.

    Args:
        score: what to rank by.
        valid: entries that exist; the others come last.
        first: entries that come before all others, whatever their score.
        group: rank within groups of equal number instead of over all; what is not valid still comes after all groups.
    """
    keys = [-score]  # the last key counts most
    if first is not None:
        keys.append(~first)
    if group is not None:
        keys.append(group)
    order = jnp.lexsort((*keys, ~valid))
    place = jnp.arange(score.shape[0], dtype=jnp.int32)
    if group is not None:
        sorted_group = jnp.where(valid, group, jnp.iinfo(jnp.int32).max)[order]
        place = place - jnp.searchsorted(sorted_group, sorted_group, side="left").astype(jnp.int32)
    return jnp.zeros_like(place).at[order].set(place)


def count_by_group(member: Bool[Array, "n"], group: Int[Array, "n"], groups: int) -> Int[Array, "groups"]:
    """Members of each group."""
    return jnp.zeros((groups,), jnp.int32).at[group].add(member.astype(jnp.int32))


def places(
    arrives: Bool[Array, "n"],
    arrival_pool: Int[Array, "n"],
    free: Bool[Array, "m"],
    row_pool: Int[Array, "m"],
    pools: int,
) -> Int[Array, "n"]:
    """A free row for each arrival: the j-th arrival of a pool takes the j-th free row of that pool; m for none."""
    rows = free.shape[0]

    def nth(flag: Bool[Array, "x"], pool: Int[Array, "x"]) -> Int[Array, "x"]:
        counts = jnp.cumsum(jax.nn.one_hot(pool, pools, dtype=jnp.int32) * flag[:, None].astype(jnp.int32), axis=0)
        return jnp.take_along_axis(counts, pool[:, None], axis=1)[:, 0] - 1

    table = jnp.full((pools, rows), rows, jnp.int32)
    column = jnp.where(free, nth(free, row_pool), rows)
    table = table.at[row_pool, column].set(jnp.arange(rows, dtype=jnp.int32), mode="drop")
    turn = nth(arrives, arrival_pool)
    return jnp.where(arrives & (turn < rows), table[arrival_pool, jnp.clip(turn, 0, rows - 1)], rows)
