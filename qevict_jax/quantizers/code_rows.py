# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Codes of single tokens: the channels of one head share words, so that a token can be written on its own.

The bit layout is that of `pallas_kernels.packing`, with channels in the place of tokens: channel ``w*(D/W) + r`` stands
where token w of channel r would, W the largest window that divides D. A token's row holds the words of its heads,
key then value.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer

from pallas_kernels.packing import WINDOWS, Plane, pack, planes, unpack
from qevict_jax.types import QEvictError


def row_planes(bits: int, head_dim: int) -> tuple[tuple[int, np.dtype], ...]:
    """For each bit plane, the words that one head's key or value takes, and their dtype."""
    return tuple((plane.words * head_dim // _lanes(head_dim), plane.dtype) for plane in _planes(bits, head_dim))


def pack_rows(
    keys: Int[Array, "*n K D"], values: Int[Array, "*n K D"], bits: int
) -> tuple[Integer[Array, "*n _K_2_words"], ...]:
    """Codes in ``0 .. 2**bits - 1`` of tokens as rows of words, one array a plane."""
    *lead, _, head_dim = keys.shape
    lanes = _lanes(head_dim)
    codes = jnp.stack([keys, values], axis=-2)
    packed = pack(codes.reshape(*codes.shape[:-1], lanes, head_dim // lanes), bits)
    return tuple(words.reshape(*lead, -1) for words in packed)


def unpack_rows(
    rows: tuple[Integer[Array, "*n _K_2_words"], ...], bits: int, kv_heads: int, head_dim: int
) -> tuple[Int[Array, "*n K D"], Int[Array, "*n K D"]]:
    """Inverse of `pack_rows`: int32 codes of keys and values."""
    lanes = _lanes(head_dim)
    lead = rows[0].shape[:-1]
    apart = tuple(words.reshape(*lead, kv_heads, 2, -1, head_dim // lanes) for words in rows)
    codes = unpack(apart, bits, lanes, axis=len(lead) + 2).reshape(*lead, kv_heads, 2, head_dim)
    return codes[..., 0, :], codes[..., 1, :]


def split_rows(
    rows: tuple[Integer[Array, "B S _K_2_words"], ...], kv_heads: int
) -> tuple[Integer[Array, "N 2 _words S"], ...]:
    """Rows of one layer taken apart by head (N = B*K, key then value), slots on the last axis, where vectors run."""

    def split(words: Array) -> Array:
        batch, slots, _ = words.shape
        apart = words.reshape(batch, slots, kv_heads, 2, -1)
        return jnp.transpose(apart, (0, 2, 3, 4, 1)).reshape(batch * kv_heads, 2, -1, slots)

    return tuple(split(words) for words in rows)


def unpack_head(words: tuple[Integer[Array, "_words S"], ...], bits: int, head_dim: int) -> Int[Array, "D S"]:
    """int32 codes of the keys, or of the values, of one head."""
    lanes = _lanes(head_dim)
    apart = tuple(x.reshape(-1, head_dim // lanes, x.shape[-1]) for x in words)
    return unpack(apart, bits, lanes, axis=0).reshape(head_dim, -1)


def _lanes(head_dim: int) -> int:
    fitting = [window for window in WINDOWS if head_dim % window == 0]
    if not fitting:
        raise QEvictError(f"head_dim={head_dim} must be a multiple of {WINDOWS[0]} for codes to be packed")
    return fitting[-1]


def _planes(bits: int, head_dim: int) -> tuple[Plane, ...]:
    return planes(bits, _lanes(head_dim))
