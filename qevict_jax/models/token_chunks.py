# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Long prompts in chunks of tokens, in place, so that what a layer makes on the way does not grow with the prompt."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

CHUNK = 2048  # tokens of all rows together: reading the weights once for so many is not what takes time
TILE = 128  # tokens of a row in a chunk come in multiples of this


def over_tokens(block_at: Callable[[Any], Any], function: Callable, results: Any, *operands: Any) -> Any:
    """``results[:, chunk] = function(block, results[:, chunk], *operands[:, chunk])``, one chunk after the other.

    Args:
        block_at: what ``function`` needs beside tokens; called with the chunk's number inside the loop over chunks,
            with None outside.
        function: what becomes of a token must not depend on other tokens.
        results: pytree of arrays ``[B, S, ...]``, overwritten; an array in its place while it is only written.
        *operands: further pytrees of such arrays.
    """
    batch, size = jax.tree.leaves(results)[0].shape[:2]
    chunk = max(TILE, CHUNK // batch // TILE * TILE)
    if size <= chunk:
        return function(block_at(None), results, *operands)

    def advance(block: Any, results: Any, start: Any, count: int) -> Any:
        taken = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, count, axis=1), (results, *operands))
        made = function(block, *taken)
        return jax.tree.map(lambda x, new: lax.dynamic_update_slice_in_dim(x, new, start, axis=1), results, made)

    whole = size // chunk
    results = lax.fori_loop(0, whole, lambda i, results: advance(block_at(i), results, i * chunk, chunk), results)
    return advance(block_at(None), results, whole * chunk, size % chunk) if size % chunk else results
