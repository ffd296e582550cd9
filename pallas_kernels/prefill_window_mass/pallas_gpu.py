# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Attention mass of prompt windows as a Triton kernel for NVIDIA GPUs: no logits leave the chip.

One program holds a block of keys of one KV head and walks over the rows that see it, a row being one query of one head.
Arrays stay as they are: queries and keys are gathered from ``[B, N, H, D]`` and ``[B, S, K, D]``.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.prefill_window_mass.base import window_sums
from pallas_kernels.tiered_decode_attention.gpu_triton import dot, iota, load, pallas_call

# Keys of a block, which stay in shared memory; rows, twice in flight, are half as many. Float32 is multiplied without
# tensor cores, term by term: with larger blocks the compiler runs out of registers.
_BLOCK_BYTES = {2: 32 << 10, 4: 16 << 10}
_LONGEST_BLOCK, _SHORTEST_BLOCK = 128, 16
WARPS, STAGES = 4, 2
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

    Products of 16-bit floats are exact and summed in float32; float32 operands are multiplied in full precision.
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
    if q.dtype != keys.dtype:
        q, keys = q.astype(jnp.float32), keys.astype(jnp.float32)
    width = pl.next_power_of_2(head_dim)
    itemsize = keys.dtype.itemsize
    block_keys = max(_SHORTEST_BLOCK, min(_LONGEST_BLOCK, _BLOCK_BYTES[itemsize] // (width * itemsize)))
    block_rows = max(_SHORTEST_BLOCK, block_keys // 2)
    row_blocks, key_blocks = pl.cdiv(count * groups, block_rows), pl.cdiv(size, block_keys)

    # the last position that a query sees; -1 sees nothing
    limit = jnp.where(q_valid, jnp.minimum(q_positions, size - 1), -1)
    by_row = jnp.repeat(limit, groups, axis=1)
    by_row = jnp.pad(by_row, ((0, 0), (0, row_blocks * block_rows - count * groups)), constant_values=-1)
    highest = by_row.reshape(batch, row_blocks, block_rows).max(axis=-1)
    sees = highest[:, None] >= jnp.arange(key_blocks)[:, None] * block_keys  # [B, key block, row block]
    first = jnp.where(sees.any(axis=-1), jnp.argmax(sees, axis=-1), row_blocks).astype(jnp.int32)

    mass = pallas_call(
        partial(
            _kernel, width=width, groups=groups, block_keys=block_keys, block_rows=block_rows, row_blocks=row_blocks
        ),
        grid=(key_blocks, kv_heads, batch),
        out_shape=jax.ShapeDtypeStruct((batch, kv_heads, key_blocks * block_keys), jnp.float32),
        warps=WARPS,
        stages=STAGES,
        interpret=interpret,
        name="prefill_window_mass",
    )(first, limit, q, keys, lse)
    return mass[:, :, :size].sum(axis=1) / heads


def _kernel(first, limit, q, keys, lse, out, *, width, groups, block_keys, block_rows, row_blocks):
    j, h, b = (pl.program_id(axis) for axis in range(3))
    _, count, _, head_dim = q.shape
    size = keys.shape[1]
    channel = iota(width)[None, :]  # not clamped: loads of a row then are as wide as they can be
    positions = j * block_keys + iota(block_keys)
    token = jnp.minimum(positions, size - 1)

    def operand(ref, *index):
        mask = None if width == head_dim else jnp.broadcast_to(channel < head_dim, (len(index[0]), width))
        return load(ref, b, *(x[:, None] if x.ndim else x for x in index), channel, mask=mask)

    block = operand(keys, token, h)

    def add(at, mass):
        row = at * block_rows + iota(block_rows)
        query = jnp.minimum(lax.div(row, groups), count - 1)
        head = h * groups + lax.rem(row, groups)
        logits = dot(block, operand(q, query, head))
        log_total = load(lse, b, query, head)
        weights = jnp.exp2(logits * (head_dim**-0.5 * _LOG2E) - log_total[None, :] * _LOG2E)
        last = jnp.where(row < count * groups, load(limit, b, query), -1)
        weights = jnp.where(positions[:, None] <= last[None, :], weights, 0.0)
        return mass + weights.sum(axis=1)

    mass = lax.fori_loop(first[b, j], row_blocks, add, jnp.zeros(block_keys, jnp.float32))
    out[b, h, pl.ds(j * block_keys, block_keys)] = mass
