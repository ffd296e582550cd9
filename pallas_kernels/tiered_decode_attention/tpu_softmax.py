# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Online softmax over blocks of scores in base 2 (Milakov and Gimelshein, arXiv:1805.02867), one row a query."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.tiered_decode_attention.tpu_tiles import LANES

MASKED = -1e30  # score of what a query does not see
_LOWEST = -1e29  # peak of a row that has seen nothing: its weights are exp2(MASKED - _LOWEST) = 0, not 1


def start(s: Any) -> None:
    """Sets peaks and sums of a sequence."""
    s.peak[...] = jnp.full(s.peak.shape, _LOWEST, jnp.float32)
    for ref in (s.total, s.constant, s.mixed):
        ref[...] = jnp.zeros(ref.shape, jnp.float32)


def raise_peak(s: Any, rows: slice, scores: list[Float[Array, "rows _"]]) -> Float[Array, "rows 1"]:
    """Takes the scores of a block into the peak, scales the sums so far to it, and returns it."""
    highest = scores[0]
    for x in scores[1:]:
        highest = jnp.maximum(highest, x)
    highest = jnp.max(highest, axis=1, keepdims=True)
    before = s.peak[rows]
    peak = jnp.maximum(before, highest)
    shrink = jnp.exp2(before - peak)
    s.peak[rows] = peak
    s.total[rows] *= shrink
    s.constant[rows] *= shrink
    s.mixed[rows] *= shrink[:, :1]
    return peak[:, :1]


def lane_sums(x: Float[Array, "rows n"]) -> Float[Array, "rows 128"]:
    """Sums over n in 128 lanes, which are added up at the end."""
    whole = x.shape[1] // LANES * LANES
    total = jnp.zeros((x.shape[0], LANES), jnp.float32)
    for first in range(0, whole, LANES):
        total = total + x[:, first : first + LANES]
    if whole < x.shape[1]:
        rest = jnp.sum(x[:, whole:], axis=1, keepdims=True) * (1 / LANES)
        total = total + rest
    return total


def factors(s: Any) -> tuple[Float[Array, "rows 1"], Float[Array, "rows 1"]]:
    """1 / denominator of each row, 0 where it has seen nothing, and the constant to add to what is mixed."""
    total = jnp.sum(s.total[...], axis=1, keepdims=True)
    inverse = jnp.where(total > 0, 1.0 / jnp.where(total > 0, total, 1.0), 0.0)
    return inverse, jnp.sum(s.constant[...], axis=1, keepdims=True)
