# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Short names of models and texts that change whenever they do."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict

import jax
import numpy as np

from qevict_jax.models import LanguageModel

_DIGITS = 16


def of_model(model: LanguageModel) -> str:
    """Hexadecimal digest of the architecture and of every parameter, bit by bit, in the dtype it was loaded in."""
    digest = hashlib.sha256(repr(sorted(asdict(model.config).items())).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(model.params):
        leaf = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        digest.update(leaf.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:_DIGITS]


def of_tokens(token_ids: Sequence[int]) -> str:
    """Hexadecimal digest of token ids."""
    return hashlib.sha256(np.asarray(token_ids, "<i8").tobytes()).hexdigest()[:_DIGITS]
