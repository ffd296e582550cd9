# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A short name of a model that changes whenever any of its numbers does."""

import hashlib
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
