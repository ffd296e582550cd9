# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Logits that transformers computes for `tests/tiny_models.py`, with their token ids and positions.

The cases are drawn here: the arrays, the live comparison and the check of their sensitivity share them.
`python -m tests.reference.make_golden` writes the arrays.
"""

import dataclasses
import zlib
from pathlib import Path

import numpy as np

from tests.tiny_models import TINY

DIRECTORY = Path(__file__).parent
SMOLLM2_FILE = DIRECTORY / "smollm2_greedy.npz"
# Positions kept of each case: the last ones have seen everything before them.
KEPT = 4
# Largest absolute difference of a float32 logit that is put down to rounding.
TOLERANCE = 2e-4
# RoPE sees differences of positions only: consecutive positions, wherever they start, cannot tell a scaled
# RoPE from an unscaled one. "gaps" has distances from one token to three times the original context.
GAPS = (
    0, 1, 2, 7, 40, 200, 1_000, 3_000, 8_100, 8_191, 8_192, 8_193,
    9_000, 12_000, 12_001, 20_000, 28_000, 28_003,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """One sequence. `tokens` and `positions` are int32 [S]."""

    name: str
    tokens: np.ndarray
    positions: np.ndarray


def cases(model: str) -> list[Case]:
    """The sequences of one row of `TINY`: three lengths from position 0, and two that lie beyond 8,192."""
    rng = np.random.default_rng(zlib.crc32(f"{model}/cases".encode()))

    def draw(name: str, positions: np.ndarray) -> Case:
        tokens = rng.integers(0, TINY[model].vocab, len(positions), dtype=np.int32)
        return Case(name, tokens, positions.astype(np.int32))

    return [
        draw("one", np.arange(1)),
        draw("short", np.arange(13)),
        draw("long", np.arange(90)),
        draw("far", 9_000 + np.arange(24)),
        draw("gaps", np.array(GAPS)),
    ]


def load(model: str) -> dict[str, np.ndarray]:
    """Arrays of one row.

    Per case "<case>/tokens", "<case>/positions" int32 [S] and "<case>/logits" float32 [min(S, KEPT), V]; of
    the greedy continuation with a cache "decode/prompt" int32 [S], "decode/tokens" int32 [N] and
    "decode/logits" float32 [N, V], from row i of which token i was chosen.
    """
    with np.load(DIRECTORY / f"{model}.npz") as file:
        return dict(file)
