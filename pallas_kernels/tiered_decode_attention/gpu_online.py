# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Online softmax over blocks of windows, tokens first: the scores of token t of all windows of a block are one array.

So the mass of a window is a sum of W arrays, without a reduction, and every token is a product of plain matrices.
Scores are in units of log2 e, since exp2 is an instruction.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# tokens of a window between two updates of the running maximum: their scores are held in registers
TOKENS = 8
LOWEST = float(jnp.finfo(jnp.float32).min) / 2  # instead of -inf, whose difference with itself is NaN


class Sums(NamedTuple):
    """State of the softmax of some query rows, relative to ``exp2(peak)``.

    Attributes:
        peak: highest score so far.
        total: sums of weights, the windows of a block apart: added up once, at the end.
        constant: sums of weight times value offset, likewise.
        mixed: weighted values.
    """

    peak: Float[Array, "rows"]
    total: Float[Array, "rows windows"]
    constant: Float[Array, "rows windows"]
    mixed: Float[Array, "rows D"]


def empty(rows: int, windows: int, channels: int) -> Sums:
    """Before any token."""
    return Sums(
        peak=jnp.full((rows,), LOWEST, jnp.float32),
        total=jnp.zeros((rows, windows), jnp.float32),
        constant=jnp.zeros((rows, windows), jnp.float32),
        mixed=jnp.zeros((rows, channels), jnp.float32),
    )


def attend(
    sums: Sums, window: int, scores, add_values, received: Float[Array, "rows windows"] | None = None
) -> tuple[Sums, Float[Array, "rows windows"]]:
    """Takes in a block of windows, or some tokens of each.

    Args:
        sums: state.
        window: W.
        scores: scores ``[rows, windows]`` of some tokens, a list, ``-inf`` where nothing is seen.
        add_values: ``(t, weights, constant, mixed) -> (constant, mixed)``, with the values of token t added.
        received: what tokens of these windows taken in before have received.

    Returns:
        The state, and the weight of each window relative to its ``peak``.
    """
    received = jnp.zeros_like(sums.total) if received is None else received
    for first in range(0, window, TOKENS):
        tokens = range(first, min(first + TOKENS, window))
        logits = scores(tokens)
        peak = jnp.maximum(sums.peak, functools.reduce(jnp.maximum, logits).max(axis=1))
        fade = jnp.exp2(sums.peak - peak)[:, None]
        constant, mixed = sums.constant * fade, sums.mixed * fade
        group = jnp.zeros_like(received)
        for t, logit in zip(tokens, logits, strict=True):
            weights = jnp.exp2(logit - peak[:, None])
            group = group + weights
            constant, mixed = add_values(t, weights, constant, mixed)
        received = received * fade + group
        sums = Sums(peak, sums.total * fade + group, constant, mixed)
    return sums, received


def by_groups(sums: Sums, groups: int, take_in) -> tuple[Sums, Float[Array, "rows windows"]]:
    """Takes in a block of windows group of tokens by group, in a loop: unrolled, all of it would want registers.

    Args:
        sums: state.
        groups: groups of tokens in a window.
        take_in: ``(group, (sums, received)) -> (sums, received)``; ``received`` is None in the first of one.
    """
    if groups == 1:
        return take_in(0, (sums, None))
    return lax.fori_loop(0, groups, take_in, (sums, jnp.zeros_like(sums.total)))
