# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays in row-major order whatever their reader would like best.

XLA:TPU gives an array the layout that suits its consumer, and through slices, reshapes and products that wish reaches
what travels in a loop: then a whole tier, or a stack of weights, is transposed at the ends of the program (LOG.md).
"""

from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Int, Shaped


def row_major(x: Shaped[Array, "*n"]) -> Shaped[Array, "*n"]:
    """``x``, beyond which no wish for another layout goes back."""
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def layer_slice(stack: Shaped[Array, "L *n"], layer: Int[Array, ""]) -> Shaped[Array, "*n"]:
    """``stack[layer]``; only the slice may be laid out anew, never the stack."""
    return row_major(lax.dynamic_index_in_dim(stack, layer, axis=0, keepdims=False))
