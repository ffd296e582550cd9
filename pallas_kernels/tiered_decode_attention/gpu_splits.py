# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""How the windows of a cache are dealt out to programs, and how what these return becomes one softmax."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# windows in a step: 32 fill the columns of one product of four warps
QUANTIZED_BLOCK = 32
# Tokens in a step of full precision, by the bytes of a number: about as many bytes as a step of codes. Float32 is
# multiplied without tensor cores, term by term: with more the compiler runs out of registers.
DENSE_BLOCK = {2: 64, 4: 16}
# programs that fill a chip: by their registers two at a time on each of the 132 multiprocessors of an H100
PROGRAMS = 2 * 132


@dataclass(frozen=True)
class Splits:
    """Steps in which the tiers are read, numbered through: quantized, full, then ring and sinks.

    Attributes:
        window: W.
        groups: steps of a block of quantized windows, each of which takes in some tokens of every window.
        dense: tokens in a step of full precision.
        quantized, full, local: steps in each tier.
        each: steps of one program.
    """

    window: int
    groups: int
    dense: int
    quantized: int
    full: int
    local: int
    each: int

    @staticmethod
    def of(quantized: int, full: int, local: int, window: int, groups: int, kv_dtype: str, copies: int) -> "Splits":
        """Splits of so many windows, quantized and full, and local rows.

        ``copies`` programs work on each, one a head, row block and sequence.
        """
        dense = max(window, DENSE_BLOCK[jnp.dtype(kv_dtype).itemsize])
        steps = groups * -(-quantized // QUANTIZED_BLOCK), -(-full * window // dense), -(-local // dense)
        return Splits(window, groups, dense, *steps, each=max(1, round(sum(steps) * copies / PROGRAMS)))

    @property
    def quantized_programs(self) -> int:
        """The first programs, which work on quantized windows."""
        return -(-self.quantized // self.each)

    @property
    def programs(self) -> int:
        """All programs of one head, row block and sequence."""
        return self.quantized_programs + -(-(self.full + self.local) // self.each)

    @property
    def steps(self) -> int:
        """Steps of all tiers."""
        return self.quantized + self.full + self.local

    @property
    def dense_windows(self) -> int:
        """Windows of a step of full precision."""
        return self.dense // self.window

    @property
    def windows(self) -> int:
        """Windows of all steps, filled up."""
        return self.quantized * QUANTIZED_BLOCK + (self.full + self.local) * self.dense_windows


def merge(
    peaks: Float[Array, "B N splits rows"],
    totals: Float[Array, "B N splits rows"],
    mixed: Float[Array, "B N splits rows D"],
) -> tuple[Float[Array, "B N rows D"], Float[Array, "B N rows"], Float[Array, "B N rows"]]:
    """One softmax from those of the splits.

    Returns:
        Output, zeros where nothing was seen; the highest score; the reciprocal of the sum, zero likewise.
    """
    peak = peaks.max(axis=2)
    weights = jnp.exp2(peaks - peak[:, :, None])
    total = (weights * totals).sum(axis=2)
    inverse = jnp.where(total > 0, 1.0 / jnp.where(total > 0, total, 1.0), 0.0)
    out = (weights[..., None] * mixed).sum(axis=2) * inverse[..., None]
    return out, peak, inverse


def masses(
    splits: Splits,
    received: Float[Array, "B N rows windows"],
    step_peaks: Float[Array, "B N steps rows"],
    peak: Float[Array, "B N rows"],
    inverse: Float[Array, "B N rows"],
    counted: Bool[Array, "B N rows"],
) -> list[Float[Array, "B _"]]:
    """Mass of every window of each tier, summed over the query rows that count; tiers are filled up to whole steps.

    Args:
        splits: which windows are in which step.
        received: weight of each window relative to the peak of its step.
        step_peaks: those peaks.
        peak: the highest score of each row.
        inverse: reciprocal of each row's sum.
        counted: rows of valid query tokens.
    """
    scale = jnp.exp2(step_peaks - peak[:, :, None]) * jnp.where(counted, inverse, 0.0)[:, :, None]
    tiers, window, step = [], 0, 0
    for count, groups, size in (
        (splits.quantized, splits.groups, QUANTIZED_BLOCK),
        (splits.full, 1, splits.dense_windows),
        (splits.local, 1, splits.dense_windows),
    ):
        part = received[..., window : window + count * size]
        # rows that do not count may never have been written
        part = jnp.where(counted[..., None], part, 0.0).reshape(*part.shape[:-1], -1, groups, size)
        part_scale = scale[:, :, step : step + count].reshape(*scale.shape[:2], -1, groups, scale.shape[3])
        tiers.append(jnp.einsum("bnrcgw,bncgr->bcw", part, part_scale).reshape(part.shape[0], -1))
        window, step = window + count * size, step + count
    return tiers


def share(splits: Splits, program: Int[Array, ""], quantized: bool) -> tuple[Array, Array]:
    """First and last step, exclusive, of a program among those of quantized windows or among the dense ones."""
    first = program if quantized else program - splits.quantized_programs
    last = splits.quantized if quantized else splits.full + splits.local
    return first * splits.each, jnp.minimum((first + 1) * splits.each, last)
