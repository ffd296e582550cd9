# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Storage of token-level eviction: a ring of recent tokens, and rows that each hold one token of one KV head.

Evicted tokens are gone: their rows hold others. Rows of all layers lie in one array of static size; a layer owns a
segment of it. With ``per_head`` row r of a segment belongs to head ``r % K``, so every head has the same number of
tokens; otherwise any row may belong to any head (packed, ragged), and ``owner`` says to which. With ``layered``
segments differ in length, by row of the batch too, up to a static most; ``begin`` says where they are. What is not
needed is no array.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels.float_bits import stored_dtype
from qevict_jax.types import KVShape


@dataclass(frozen=True)
class RowLayout:
    """Static numbers of the storage.

    Attributes:
        shape: layers, heads, head_dim and dtype.
        rows: rows of one layer on average, a multiple of K.
        most: rows of one layer at most; ``rows`` unless ``layered``.
        recent: newest tokens that no event evicts.
        ring: R, rows of the ring.
        per_head: all heads hold equally many tokens.
        layered: layers may hold different numbers of tokens.
        weighted: a number per token beside its score.
    """

    shape: KVShape
    rows: int
    most: int
    recent: int
    ring: int
    per_head: bool
    layered: bool
    weighted: bool


@no_type_check  # a pytree also holds shapes, specs and NumPy arrays
@struct.dataclass
class TokenRows:
    """The cache of a batch; ``rows`` below is ``L * layout.rows``.

    Attributes:
        ring: recent tokens ``[L, B, R, K*2*D]``.
        ring_score: score of every token and head in the ring.
        rows: key and value of one token and head each, ``[B, rows, 2*D]``, keys after RoPE at their own positions.
        position: of the token in each row, -1 if the row is empty.
        score: of each row.
        weight: of each row, or None.
        owner: ``layer * K + head`` of each row, int16, or None with ``per_head``.
        pinned: rows that rank before all others until the prompt is closed, or None unless ``layered``.
        begin: first row of each layer and one past the last, or None unless ``layered``.
        length: n, tokens seen by each row of the batch.
        start: oldest position in the ring of each.
        layout: the static numbers.
    """

    ring: Shaped[Array, "L B R K_2_D"]
    ring_score: Float[Array, "L B R K"]
    rows: Shaped[Array, "B rows 2_D"]
    position: Int[Array, "B rows"]
    score: Float[Array, "B rows"]
    weight: Float[Array, "B rows"] | None
    owner: Int[Array, "B rows"] | None
    pinned: Bool[Array, "B rows"] | None
    begin: Int[Array, "B L_1"] | None
    length: Int[Array, "B"]
    start: Int[Array, "B"]
    layout: RowLayout = struct.field(pytree_node=False)


def abstract_rows(layout: RowLayout, batch: int) -> TokenRows:
    """The cache as shapes and dtypes: what `init_rows` fills and what the byte accounting adds up."""
    layers, kv_heads, head_dim = layout.shape.layers, layout.shape.kv_heads, layout.shape.head_dim
    total, stored = layers * layout.rows, stored_dtype(layout.shape.dtype)

    def array(dtype: Any, *axes: int) -> Any:
        return jax.ShapeDtypeStruct(axes, dtype)

    return TokenRows(
        ring=array(stored, layers, batch, layout.ring, kv_heads * 2 * head_dim),
        ring_score=array(jnp.float32, layers, batch, layout.ring, kv_heads),
        rows=array(stored, batch, total, 2 * head_dim),
        position=array(jnp.int32, batch, total),
        score=array(jnp.float32, batch, total),
        weight=array(jnp.float32, batch, total) if layout.weighted else None,
        owner=None if layout.per_head else array(jnp.int16, batch, total),
        pinned=array(jnp.bool_, batch, total) if layout.layered else None,
        begin=array(jnp.int32, batch, layers + 1) if layout.layered else None,
        length=array(jnp.int32, batch),
        start=array(jnp.int32, batch),
        layout=layout,
    )


def init_rows(layout: RowLayout, batch: int) -> TokenRows:
    """An empty cache; segments of equal length."""
    cache = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), abstract_rows(layout, batch))
    begin = cache.begin
    if begin is not None:
        begin = begin + jnp.arange(begin.shape[1], dtype=jnp.int32) * layout.rows
    return replace(cache, position=cache.position - 1, begin=begin)


class Segment(NamedTuple):
    """Rows ``first .. first + most - 1``, among them all of one layer.

    Attributes:
        first: of each sequence.
        capacity: rows that are the layer's.
        mine: which they are.
        used: of them, those that hold a token.
        head: KV head of each.
    """

    first: Int[Array, "B"]
    capacity: Int[Array, "B"]
    mine: Bool[Array, "B m"]
    used: Bool[Array, "B m"]
    head: Int[Array, "B m"]


def segment(cache: TokenRows, layer: Int[Array, ""] | int) -> Segment:
    """The rows of one layer."""
    layout = cache.layout
    batch, total = cache.position.shape
    if cache.begin is None:
        begin = jnp.full((batch,), layer * layout.rows, jnp.int32)
        end = begin + layout.rows
    else:
        begin, end = (lax.dynamic_index_in_dim(cache.begin, layer + i, axis=1, keepdims=False) for i in (0, 1))
    first = jnp.minimum(begin, total - layout.most)
    rows = first[:, None] + jnp.arange(layout.most, dtype=jnp.int32)
    mine = (rows >= begin[:, None]) & (rows < end[:, None])
    if cache.owner is None:
        head = jnp.broadcast_to(jnp.arange(layout.most, dtype=jnp.int32) % layout.shape.kv_heads, rows.shape)
    else:
        head = read(cache, cache.owner, first).astype(jnp.int32) % layout.shape.kv_heads
    return Segment(first, end - begin, mine, mine & (read(cache, cache.position, first) >= 0), head)


def read(cache: TokenRows, array: Shaped[Array, "B rows *n"], first: Int[Array, "B"]) -> Shaped[Array, "B m *n"]:
    """``layout.most`` rows from ``first`` on."""
    size = cache.layout.most
    if cache.begin is None:  # one slice for the whole batch
        return lax.dynamic_slice_in_dim(array, first[0], size, axis=1)
    return jax.vmap(lambda x, at: lax.dynamic_slice_in_dim(x, at, size, axis=0))(array, first)
