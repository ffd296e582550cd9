# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Attention mass of prompt windows as a Mosaic TPU kernel: no logits leave the chip's vector memory.

One grid step takes a block of keys against a block of query rows, a row being one query of one head. Logits stand
transposed, keys along sublanes and rows along lanes: then summing over rows is adding registers, and what belongs to a
row (log-sum-exp, position) is one vector along lanes instead of a padded column in memory. Rows that see no key of the
block are neither loaded nor computed.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.prefill_window_mass.base import window_sums

_LANES = 128
_KEYS = 512  # keys of a block
_ROWS = 1024  # rows of a block
_LOG2E = float(np.log2(np.e))


def prefill_window_mass(
    q: Float[Array, "B N H D"],
    keys: Float[Array, "B S K D"],
    lse: Float[Array, "B N H"],
    q_positions: Int[Array, "B N"],
    q_valid: Bool[Array, "B N"],
    key_weight: Float[Array, "B S"],
    *,
    window: int,
    sink: int,
    interpret: bool = False,
) -> Float[Array, "B windows"]:
    """`base.prefill_window_mass`, which says what it computes, for any D, G, N and S.

    Products of bfloat16 are exact and summed in float32; float32 operands are multiplied in full precision, and
    float16, which Mosaic cannot load, as float32.
    """
    mass = _token_mass(q, keys, lse, q_positions, q_valid, interpret=interpret)
    return window_sums(mass * key_weight, window, sink)


@partial(jax.jit, static_argnames="interpret")
def _token_mass(
    q: Float[Array, "B N H D"],
    keys: Float[Array, "B S K D"],
    lse: Float[Array, "B N H"],
    q_positions: Int[Array, "B N"],
    q_valid: Bool[Array, "B N"],
    *,
    interpret: bool,
) -> Float[Array, "B S"]:
    batch, count, heads, head_dim = q.shape
    size, kv_heads = keys.shape[1], keys.shape[2]
    groups = heads // kv_heads
    if keys.dtype != jnp.bfloat16 or q.dtype != jnp.bfloat16:
        q, keys = q.astype(jnp.float32), keys.astype(jnp.float32)
    folded = groups if count < _ROWS else 1  # heads whose queries share a block, so that few queries fill one too
    rows, row_heads = count * folded, heads // folded
    block_keys = min(_KEYS, _round_up(size, _LANES))
    block_rows = min(_ROWS, _round_up(rows, _LANES))
    row_blocks, key_blocks = pl.cdiv(rows, block_rows), pl.cdiv(size, block_keys)

    q = jnp.transpose(q, (0, 2, 1, 3)).reshape(batch, row_heads, rows, head_dim)
    lse = jnp.transpose(lse, (0, 2, 1)).reshape(batch, row_heads, 1, rows)
    # the last position that a row sees; -1 sees nothing
    limit = jnp.where(q_valid, jnp.minimum(q_positions, size - 1), -1)
    limit = jnp.tile(limit, (1, folded))
    limit = jnp.pad(limit, ((0, 0), (0, row_blocks * block_rows - rows)), constant_values=-1)
    by_block = limit.reshape(batch, row_blocks, block_rows)
    lowest, highest = by_block.min(axis=-1), by_block.max(axis=-1)
    sees = highest[:, None] >= jnp.arange(key_blocks)[:, None] * block_keys  # [B, key block, row block]
    first = jnp.argmax(sees, axis=-1).astype(jnp.int32)

    def row_block(b, j, r, first):
        return jnp.maximum(r, first[b, j])  # a block that is not needed keeps the place of the next one that is

    return pl.pallas_call(
        partial(_kernel, scale=head_dim**-0.5, heads=heads),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(batch, key_blocks, row_heads, row_blocks),
            in_specs=[
                pl.BlockSpec(
                    (None, None, block_rows, head_dim),
                    lambda b, j, h, r, first, *_: (b, h, row_block(b, j, r, first), 0),
                ),
                pl.BlockSpec(
                    (None, None, block_keys, head_dim),
                    lambda b, j, h, r, *_: (b, lax.div(h, row_heads // kv_heads), j, 0),
                ),
                pl.BlockSpec(
                    (None, None, 1, block_rows), lambda b, j, h, r, first, *_: (b, h, 0, row_block(b, j, r, first))
                ),
                pl.BlockSpec((None, 1, block_rows), lambda b, j, h, r, first, *_: (b, 0, row_block(b, j, r, first))),
            ],
            out_specs=pl.BlockSpec((None, 1, block_keys), lambda b, j, h, r, *_: (b, 0, j)),
            scratch_shapes=[pltpu.VMEM((block_keys, _LANES), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((batch, 1, size), jnp.float32),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"),
        ),
        interpret=interpret,
        name="prefill_window_mass",
    )(first, lowest, highest, q, jnp.transpose(keys, (0, 2, 1, 3)), lse, limit[:, None])[:, 0]


def _kernel(first, lowest, highest, q, keys, lse, limit, out, total, *, scale: float, heads: int):
    """Adds one block of rows to the mass of one block of keys; ``total`` keeps a partial sum for every lane."""
    del first  # for the index maps
    b, j, h, r = (pl.program_id(axis) for axis in range(4))
    block_keys, block_rows = keys.shape[0], q.shape[0]
    start = j * block_keys
    precision = lax.Precision.HIGHEST if q.dtype == jnp.float32 else lax.Precision.DEFAULT

    @pl.when((h == 0) & (r == 0))
    def _():
        total[...] = jnp.zeros_like(total)

    def add(masked: bool):
        def lanes(at: Array, carry: None) -> None:
            part = pl.ds(pl.multiple_of(at * _LANES, _LANES), _LANES)
            logits = lax.dot_general(
                keys[...],
                q[part, :],
                (((1,), (1,)), ((), ())),
                precision=precision,
                preferred_element_type=jnp.float32,
            )
            weights = jnp.exp2(logits * (scale * _LOG2E) - lse[:, part] * _LOG2E)
            if masked:
                positions = start + lax.broadcasted_iota(jnp.int32, weights.shape, 0)
                weights = jnp.where(positions <= limit[:, part], weights, 0.0)
            total[...] += weights

        lax.fori_loop(0, block_rows // _LANES, lanes, None)

    whole = start + block_keys - 1 <= lowest[b, r]
    pl.when(whole)(partial(add, masked=False))
    pl.when((start <= highest[b, r]) & ~whole)(partial(add, masked=True))

    @pl.when((h == pl.num_programs(2) - 1) & (r == pl.num_programs(3) - 1))
    def _():
        out[...] = total[...].T.sum(axis=0, keepdims=True) / heads


def _round_up(x: int, to: int) -> int:
    return -(-x // to) * to
