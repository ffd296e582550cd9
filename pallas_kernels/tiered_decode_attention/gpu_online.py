# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Online softmax over blocks of windows, tokens first: the scores of token t of all windows of a block are one array.

So the mass of a window is a sum of W arrays, without a reduction, and every token is a product of plain matrices.
Scores are in units of log2 e, since exp2 is an instruction.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

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


def attend(sums: Sums, tokens: int, scores, add_values) -> tuple[Sums, Float[Array, "rows windows"]]:
    """Takes in some tokens of each window of a block.

    Args:
        sums: state.
        tokens: how many; their scores are held in registers.
        scores: ``tokens -> scores``, a list of ``[rows, windows]`` for a range, ``-inf`` where nothing is seen.
        add_values: ``(t, weights, constant, mixed) -> (constant, mixed)``, with the values of token t added.

    Returns:
        The state, and the weight of each window relative to its ``peak``.
    """
    logits = scores(range(tokens))
    peak = jnp.maximum(sums.peak, functools.reduce(jnp.maximum, logits).max(axis=1))
    fade = jnp.exp2(sums.peak - peak)[:, None]
    constant, mixed = sums.constant * fade, sums.mixed * fade
    received = jnp.zeros_like(sums.total)
    for t, logit in enumerate(logits):
        weights = jnp.exp2(logit - peak[:, None])
        received = received + weights
        constant, mixed = add_values(t, weights, constant, mixed)
    return Sums(peak, sums.total * fade + received, constant, mixed), received
