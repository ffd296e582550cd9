# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Queries turned back, so that keys need not be turned.

A window that starts at P holds at offset t the key ``k = code * scale + offset`` of every channel, and RoPE is linear:

    q . R(P + t) k = u_t . R(P) k,    u_t = R(-t) q
                   = [u_t | u'_t] . [cos P * k | sin P * k],    u'_t = (second half of u_t | -first half of u_t)

The left factors are a few constant rows per offset, and the right ones need no exchange of channels: per window and
channel there are two multipliers ``scale * cos P`` and ``scale * sin P`` for the codes of all its tokens, and the
offsets are one more row for all of them. Angle addition is thus done on the queries alone.

A key bias b adds ``cos P * (u_t b folded) + sin P * (u'_t b folded)``, where folding adds the halves of the channels.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.tiered_decode_attention.tpu_parts import stacked_parts
from pallas_kernels.tiered_decode_attention.tpu_shape import KernelShape


def prepare(
    shape: KernelShape,
    queries: Float[Array, "rows D"] | Any,
    offset_cos_sin: Any,
    key_bias: Any | None,
    s: Any,
) -> None:
    """Writes ``[u_t | u'_t]`` of every KV head, offset and tile row, zeros in rows of other heads.

    Args:
        shape: static numbers.
        queries: ref ``[1, rows, D]``, scaled.
        offset_cos_sin: ref ``[W, 1, 2*D]`` of the angles of offsets, cosines then sines, each half twice.
        key_bias: ref ``[K, 1, D]`` or None.
        s: scratch; ``queries`` and ``bias_rows`` are written.
    """
    rows, channels = shape.rows, shape.head_dim
    row = lax.broadcasted_iota(jnp.int32, (rows.rows, channels), 0)

    def one_offset(offset: Any, _: None) -> None:
        turn = offset_cos_sin[offset]
        cos, sin = turn[:, :channels], turn[:, channels:]
        for tile in range(rows.tiles):
            q = queries[0, tile * rows.rows : (tile + 1) * rows.rows, :]
            turned = q * cos + _exchanged(q) * sin
            other = _exchanged(turned)
            bias = jnp.zeros((rows.rows, channels), jnp.float32)
            for index, head in enumerate(rows.heads(tile)):
                own = (row >= index * rows.stride) & (row < (index + 1) * rows.stride)
                mine, mine_other = (jnp.where(own, x, 0.0) for x in (turned, other))
                both = jnp.concatenate([mine, mine_other], axis=1)
                s.queries[head, offset] = stacked_parts(both, shape.query_parts)
                if key_bias is not None:
                    folded = [_folded(x * key_bias[head]) for x in (mine, mine_other)]
                    bias = bias + jnp.concatenate(folded, axis=1)
            if key_bias is not None:
                s.bias_rows[tile, offset] = stacked_parts(bias, shape.query_parts)

    lax.fori_loop(0, shape.query_tokens, one_offset, None)


def _exchanged(x: Float[Array, "rows D"]) -> Float[Array, "rows D"]:
    """Second half of the channels, then the first with its sign changed."""
    half = x.shape[1] // 2
    return jnp.concatenate([x[:, half:], -x[:, :half]], axis=1)


def _folded(x: Float[Array, "rows D"]) -> Float[Array, "rows halfD"]:
    half = x.shape[1] // 2
    return x[:, :half] + x[:, half:]
