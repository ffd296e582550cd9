# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict generate --watch`: the tiers of one layer in the terminal while text streams."""

import sys
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int8
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from qevict_jax.policies.base import Tier
from qevict_jax.types import QEvictError

if TYPE_CHECKING:
    from qevict_jax.generate import stream

# a letter or shade and a colour: told apart without colours too
CELLS = {
    Tier.SINK: ("S", "magenta", "sink"),
    Tier.FULL: ("█", "blue", "full precision"),
    Tier.QUANTIZED: ("▒", "yellow", "quantized"),
    Tier.EVICTED: ("·", "bright_black", "evicted"),
    Tier.RECENT: ("▄", "green", "recent"),
}
_MAP_LINES = 8
_TEXT_LINES = 10


def check_watch(layer: int | None, layers: int) -> int:
    """The layer to show, the middle one if none was asked for.

    Raises:
        QEvictError: if standard output is not a terminal, or the model has no such layer.
    """
    if not sys.stdout.isatty():
        raise QEvictError("--watch draws in a terminal, and standard output is none; leave --watch out")
    shown = layers // 2 if layer is None else layer
    if not 0 <= shown < layers:
        raise QEvictError(f"--watch-layer {shown}: the model has layers 0 to {layers - 1}")
    return shown


def watch(pieces: "stream", layer: int, console: Console | None = None) -> str:
    """Draws until the text ends, then takes the drawing away.

    Args:
        pieces: the answer.
        layer: the layer to show.
        console: where to draw, default standard output.

    Returns:
        The text.
    """
    text = ""
    with Live(console=console or Console(), auto_refresh=False, transient=True) as live:
        for piece in pieces:
            text += piece
            live.update(view(text, pieces.placement()[layer], layer, live.console.width), refresh=True)
    return text


def view(text: str, placement: Int8[np.ndarray, "heads S"], layer: int, width: int) -> Group:
    """The end of the text, and under it the tiers of the first KV head, or of all heads if they share them."""
    tiers = placement[0][placement[0] != Tier.UNSEEN]
    lines = Text(text).wrap(Console(width=width), width)
    head = "" if placement.shape[0] == 1 else ", KV head 0"
    counts = Text(f"layer {layer}{head}, {len(tiers)} tokens: ")
    for tier, (cell, color, name) in CELLS.items():
        count = int(np.sum(tiers == tier))
        if count:
            counts.append(f"{cell} ", color).append(f"{name} {count}  ")
    return Group(*lines[-_TEXT_LINES:], Text(), counts, tier_map(tiers, width))


def tier_map(tiers: Int8[np.ndarray, "n"], width: int) -> Text:
    """Positions in reading order, as few to a cell as fit; a cell shows the tier of most of them."""
    per_cell = max(1, -(-len(tiers) // (width * _MAP_LINES)))
    cells = [int(np.bincount(tiers[at : at + per_cell]).argmax()) for at in range(0, len(tiers), per_cell)]
    drawn = Text()
    for tier, run in groupby(cells):
        cell, color, _ = CELLS[Tier(tier)]
        drawn.append(cell * len(list(run)), color)
    return drawn
