# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays in tiles of 128 lanes: in VMEM, rows can be read with a stride only where the last axis is one register."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Shaped

LANES = 128


def tiles_of(width: int) -> int:
    """Tiles that ``width`` columns take."""
    return -(-width // LANES)


def store_tiles(ref: Any, x: Shaped[Array, "rows C"], start: int) -> None:
    """Writes ``x`` into rows from ``start`` on of ``ref``, ``[tiles, rows, 128]``."""
    for tile in range(tiles_of(x.shape[1])):
        piece = x[:, tile * LANES : (tile + 1) * LANES]
        ref[tile, start : start + x.shape[0], : piece.shape[1]] = piece


def load_tiles(ref: Any, rows: Any, width: int) -> Shaped[Array, "rows C"]:
    """Reads ``width`` columns of the given rows, a slice with or without a stride."""
    tiles = [ref.at[tile][rows, :] for tile in range(tiles_of(width))]
    tiles[-1] = tiles[-1][:, : width - LANES * (len(tiles) - 1)]
    return jnp.concatenate(tiles, axis=1) if len(tiles) > 1 else tiles[0]


def column(row: Shaped[Array, "1 n"]) -> Shaped[Array, "n 128"]:
    """Numbers on lanes brought to sublanes, each over a whole row; n is a multiple of 128."""
    pieces = [row[:, start : start + LANES] for start in range(0, row.shape[1], LANES)]
    turned = [jnp.broadcast_to(piece, (LANES, LANES)).T for piece in pieces]
    return jnp.concatenate(turned, axis=0) if len(turned) > 1 else turned[0]
