# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens that kvpress keeps of a prompt, on the tiny checkpoints: what is compared, and where the sets are stored.

`python -m tests.reference.make_kept_sets`, in an environment with torch and kvpress, writes `kept_sets.npz`: for
``<model>/<policy>`` a bool array ``[L, K, S]``, and ``<model>/tokens``.
"""

import zlib
from pathlib import Path

import numpy as np

from tests.tiny_models import TINY

FILE = Path(__file__).parent / "kept_sets.npz"
MODELS = ("llama", "qwen2-g7")
SIZE = 90  # prompt tokens
KEPT = 36  # of them, per head on average
WINDOW = 4  # observation window of the SnapKV family
KERNEL = 5
# kvpress counts the window in whatever it takes a share of. These are its floor of 0.2 and its first stage of 0.5 as
# shares of the budget without the window, where ours count from: int(0.2 * 36) - 4 = 3, int(0.5 * 36) - 4 = 14 of 32.
FLOOR = (int(0.2 * KEPT) - WINDOW) / (KEPT - WINDOW)
FIRST_STAGE = (int(0.5 * KEPT) - WINDOW) / (KEPT - WINDOW)
_WINDOWED = f"window={WINDOW},kernel={KERNEL},pool=avg"
# policy and its options -> how kvpress is asked for the same
CASES = {
    "streaming_llm": ("streaming_llm", "positions=original"),
    "snapkv": ("snapkv", _WINDOWED),
    "adakv": ("adakv", f"{_WINDOWED},floor={FLOOR}"),
    "criticalkv_uniform": ("criticalkv", f"{_WINDOWED},floor=1,first_stage={FIRST_STAGE}"),
    "criticalkv": ("criticalkv", f"{_WINDOWED},floor={FLOOR},first_stage={FIRST_STAGE}"),
}


def tokens(model: str) -> np.ndarray:
    """The prompt, int32 ``[S]``."""
    rng = np.random.default_rng(zlib.crc32(f"{model}/kept".encode()))
    return rng.integers(0, TINY[model].vocab, SIZE, dtype=np.int32)


def load() -> dict[str, np.ndarray]:
    """All sets."""
    with np.load(FILE) as file:
        return dict(file)
