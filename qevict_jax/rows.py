# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A row of a batch as a part of every array of a pytree, whatever the pytree is.

Which axis counts rows is read from the shapes of the tree for one row and for two; nothing else about it is known. An
axis may count several entries per row (heads of row 0, heads of row 1, ...); an array that is the same for one row and
for two belongs to no row and stays as it is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Shaped


class RowAxis(NamedTuple):
    """Where the rows of one array are: the axis, and its entries per row. An axis of -1 is none."""

    axis: int
    width: int


def row_axes(make: Callable[[int], Any]) -> Any:
    """A `RowAxis` for every array of a tree.

    Args:
        make: the tree for a number of rows; only its shapes are looked at.

    Raises:
        ValueError: the shape of an array does not say where its rows are.
    """
    one, two = (jax.eval_shape(lambda rows=rows: make(rows)) for rows in (1, 2))
    return jax.tree.map(_row_axis, one, two)


def _row_axis(one: Any, two: Any) -> RowAxis:
    sizes = list(zip(one.shape, two.shape, strict=True))
    axes = [axis for axis, (single, double) in enumerate(sizes) if single != double]
    if not axes:
        return RowAxis(-1, 0)
    (axis, *more), (single, double) = axes, sizes[axes[0]]
    if more or double != 2 * single:
        raise ValueError(f"an array is {one.shape} for one row and {two.shape} for two, so no axis counts its rows")
    return RowAxis(axis, single)


def put_row(
    running: Any, rows: Any, axes: Any, row: Int[Array, ""], slot: Int[Array, ""], here: Bool[Array, ""] | None = None
) -> Any:
    """The running batch with its row ``slot`` replaced by row ``row`` of another batch; donate the former.

    Args:
        running: a tree of the kind that ``axes`` describes.
        rows: another of any number of rows.
        axes: from `row_axes`.
        row: which of ``rows``.
        slot: which of ``running``.
        here: false leaves everything as it is; None is true.
    """

    def put(at: RowAxis, into: Shaped[Array, "..."], source: Shaped[Array, "..."]) -> Array:
        if at.axis < 0:
            return into
        part = lax.dynamic_slice_in_dim(source, row * at.width, at.width, at.axis)
        if here is not None:  # a choice between two rows; one between two batches would copy the batch
            part = jnp.where(here, part, lax.dynamic_slice_in_dim(into, slot * at.width, at.width, at.axis))
        return lax.dynamic_update_slice_in_dim(into, part, slot * at.width, at.axis)

    return jax.tree.map(put, axes, running, rows, is_leaf=lambda x: isinstance(x, RowAxis))
