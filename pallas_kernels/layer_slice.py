# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""One layer of a stack, in row-major order whatever its reader would like best.

XLA:TPU gives an array the layout that suits its consumer. Through a slice that wish reaches the stack itself, which
travels in a loop: then the whole tier is transposed at both ends of the program (LOG.md). Pinned, only the slice is.
"""

from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Int, Shaped


def layer_slice(stack: Shaped[Array, "L *n"], layer: Int[Array, ""]) -> Shaped[Array, "*n"]:
    """``stack[layer]``."""
    part = lax.dynamic_index_in_dim(stack, layer, axis=0, keepdims=False)
    return with_layout_constraint(part, Layout(major_to_minor=tuple(range(part.ndim))))
