# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""How the windows of a cache are dealt out to programs, and how what these return becomes one softmax."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# windows in a block: 32 fill the columns of one product of four warps; a dense window is four times as large
QUANTIZED_BLOCK = 32
DENSE_BLOCK = 16
# programs that fill a chip: by their registers two at a time on each of the 132 multiprocessors of an H100
PROGRAMS = 2 * 132


@dataclass(frozen=True)
class Splits:
    """Blocks of windows, numbered through the tiers: quantized, full, then ring and sinks.

    Attributes:
        quantized, full, local: blocks in each tier.
        quantized_each, dense_each: blocks of one program.
    """

    quantized: int
    full: int
    local: int
    quantized_each: int
    dense_each: int

    @staticmethod
    def of(quantized: int, full: int, local: int, copies: int) -> "Splits":
        """Splits of so many windows; ``copies`` programs work on each, one a head, row block and sequence."""
        blocks = -(-quantized // QUANTIZED_BLOCK), -(-full // DENSE_BLOCK), -(-local // DENSE_BLOCK)
        dense_cost = 2  # of a dense block in blocks of codes, by bytes
        load = (blocks[0] + dense_cost * (blocks[1] + blocks[2])) * copies
        each = max(1, round(load / PROGRAMS))
        return Splits(*blocks, quantized_each=each, dense_each=max(1, each // dense_cost))

    @property
    def quantized_programs(self) -> int:
        """The first programs, which work on quantized windows."""
        return -(-self.quantized // self.quantized_each)

    @property
    def programs(self) -> int:
        """All programs of one head, row block and sequence."""
        return self.quantized_programs + -(-(self.full + self.local) // self.dense_each)

    @property
    def blocks(self) -> int:
        """Blocks of all tiers."""
        return self.quantized + self.full + self.local

    @property
    def windows(self) -> int:
        """Windows of all blocks, filled up."""
        return self.quantized * QUANTIZED_BLOCK + (self.full + self.local) * DENSE_BLOCK


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
    block_peaks: Float[Array, "B N blocks rows"],
    peak: Float[Array, "B N rows"],
    inverse: Float[Array, "B N rows"],
    counted: Bool[Array, "B N rows"],
) -> list[Float[Array, "B _"]]:
    """Mass of every window of each tier, summed over the query rows that count; tiers are filled up to whole blocks.

    Args:
        splits: which windows are in which block.
        received: weight of each window relative to the peak of its block.
        block_peaks: those peaks.
        peak: the highest score of each row.
        inverse: reciprocal of each row's sum.
        counted: rows of valid query tokens.
    """
    scale = jnp.exp2(block_peaks - peak[:, :, None]) * jnp.where(counted, inverse, 0.0)[:, :, None]
    tiers, window, block = [], 0, 0
    for count, size in ((splits.quantized, QUANTIZED_BLOCK), (splits.full, DENSE_BLOCK), (splits.local, DENSE_BLOCK)):
        part = received[..., window : window + count * size]
        # rows that do not count may never have been written
        part = jnp.where(counted[..., None], part, 0.0).reshape(*part.shape[:-1], count, size)
        tiers.append(jnp.einsum("bnrcw,bncr->bcw", part, scale[:, :, block : block + count]).reshape(part.shape[0], -1))
        window, block = window + count * size, block + count
    return tiers


def share(splits: Splits, program: Int[Array, ""], quantized: bool) -> tuple[Array, Array]:
    """First and last block, exclusive, of a program among those of quantized windows or among the dense ones."""
    if quantized:
        first, last = program * splits.quantized_each, splits.quantized
        return first, jnp.minimum(first + splits.quantized_each, last)
    first, last = (program - splits.quantized_programs) * splits.dense_each, splits.full + splits.local
    return first, jnp.minimum(first + splits.dense_each, last)
