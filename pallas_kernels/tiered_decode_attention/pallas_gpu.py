# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Decode attention over a tiered cache on NVIDIA GPUs (compute capability 8.0 and later), in one Triton kernel.

The kernel reads the stacks in place. Its grid is splits of the windows, KV heads and sequences; small arrays with the
state of each split and the weight of each window become output and mass in XLA. `gpu_quantized` has the arithmetic.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.quantized_windows import QuantizedWindows
from pallas_kernels.tiered_decode_attention import gpu_online as online
from pallas_kernels.tiered_decode_attention import gpu_triton as triton
from pallas_kernels.tiered_decode_attention.base import Mass, Tiers
from pallas_kernels.tiered_decode_attention.gpu_dense import dense_block
from pallas_kernels.tiered_decode_attention.gpu_quantized import TOKENS, Group, Place, Shape, quantized_block
from pallas_kernels.tiered_decode_attention.gpu_splits import QUANTIZED_BLOCK, Splits, masses, merge, share

ROWS = 16  # query rows of a program: what one matrix instruction takes
WARPS, STAGES = 4, 2


def stages(window: int, head_dim: int, kv_dtype: str) -> int:
    """Steps in flight: two, or one where a second may exceed the 99 KB of shared memory of the smaller chips."""
    wide = 1 << (head_dim - 1).bit_length()
    return STAGES if min(window, TOKENS) * wide * jnp.dtype(kv_dtype).itemsize <= 2048 else 1


class Refs(NamedTuple):
    """Inputs of the kernel; N is KV heads times blocks of query rows, head first."""

    turned: Float[Array, "B N group pieces 2 rows piece"]
    queries: Float[Array, "B N parts rows channels"]
    row_positions: Int[Array, "B N rows"]
    newest: Int[Array, "B"]
    tiers: Tiers
    layer: Int[Array, "1"]
    group_starts: Int[Array, "groups block"] | None
    inv_freq: Float[Array, "pieces piece"]
    key_bias: Float[Array, "K 2 pieces piece"] | None


class Results(NamedTuple):
    """Outputs of the kernel."""

    peaks: Float[Array, "B N splits rows"]
    totals: Float[Array, "B N splits rows"]
    mixed: Float[Array, "B N splits rows D"]
    received: Float[Array, "B N rows windows"]
    step_peaks: Float[Array, "B N steps rows"]


def unsupported(tiers: Tiers) -> str | None:
    """Why the kernel cannot address these arrays, or None.

    Triton computes offsets in 32 bits into an array of at most 2**32 bytes, which of 2**31 elements or more is too few.
    """
    for stack in jax.tree.leaves((tiers.local, tiers.full, tiers.quantized)):
        if stack.size >= 1 << 31 and stack.size * stack.dtype.itemsize <= 1 << 32:
            return f"a stack {stack.shape} of {stack.dtype} has too many elements for 32-bit offsets"
    return None


def tiered_decode_attention(
    q: Float[Array, "B T H D"],
    q_positions: Int[Array, "B T"],
    q_valid: Bool[Array, "B T"],
    tiers: Tiers,
    layer: Int[Array, ""],
    inv_freq: Float[Array, "halfD"],
    key_bias: Float[Array, "K D"] | None,
    *,
    kv_heads: int,
    window: int,
    ring: int,
    bits: int,
    kv_dtype: str,
    interpret: bool = False,
) -> tuple[Float[Array, "B T H D"], Mass]:
    """`base.tiered_decode_attention` for GPUs.

    Quantized keys and queries meet in float16, values and weights in bfloat16, sums are float32. Keys with their bias
    must stay below 46,000 in magnitude, so that a turned key fits float16.

    Raises:
        ValueError: `unsupported` says why.
    """
    if reason := unsupported(tiers):
        raise ValueError(reason)
    batch, tokens, heads, head_dim = q.shape
    groups = heads // kv_heads
    shape = Shape(kv_heads, head_dim, window, bits, ROWS, interpret)
    row_blocks = -(-tokens * groups // ROWS)
    splits = Splits.of(
        0 if tiers.quantized is None else tiers.quantized.key_params.shape[2],
        0 if tiers.full is None else tiers.full.shape[2],
        tiers.local.shape[2],
        window,
        shape.groups,
        kv_dtype,
        copies=batch * kv_heads * row_blocks,
    )

    def by_row(x: Array) -> Array:
        """``[B, T, ...]`` repeated for each head of a group, filled up: ``[B, row_blocks, ROWS]``."""
        rows = jnp.repeat(x, groups, axis=1)
        padding = row_blocks * ROWS - rows.shape[1]
        return jnp.pad(rows, ((0, 0), (0, padding))).reshape(batch, row_blocks, ROWS)

    def by_program(x: Array) -> Array:
        """The same for every KV head: ``[B, N, ROWS]``."""
        return jnp.broadcast_to(x[:, None], (batch, kv_heads, *x.shape[1:])).reshape(batch, -1, ROWS)

    counted = by_program(by_row(q_valid))
    row_positions = jnp.where(counted, by_program(by_row(q_positions)), -1)
    rows = _rows(q, kv_heads, row_blocks)
    refs = Refs(
        turned=_turn_back(rows, inv_freq, shape),
        queries=_parts(_pad_last(rows.reshape(*rows.shape[:3], head_dim), shape.channels), kv_dtype),
        row_positions=row_positions,
        newest=row_positions.max(axis=(1, 2)),
        tiers=tiers._replace(full_valid=None if tiers.full_valid is None else tiers.full_valid.astype(jnp.int32)),
        layer=jnp.reshape(layer, (1,)),
        group_starts=None if shape.groups == 1 else _group_starts(shape),
        inv_freq=_pieces(inv_freq, shape),
        key_bias=None
        if key_bias is None
        else _pieces(key_bias.astype(jnp.float16).reshape(kv_heads, 2, head_dim // 2), shape),
    )
    results = _call(refs, splits, shape, row_blocks, tokens * groups, kv_dtype)

    used = tokens * groups if row_blocks == 1 else ROWS  # rows behind are not read
    out, peak, inverse = merge(
        results.peaks[..., :used], results.totals[..., :used], results.mixed[..., :used, :head_dim]
    )
    out = out.reshape(batch, kv_heads, row_blocks * used, head_dim)[:, :, : tokens * groups]
    out = jnp.transpose(out.reshape(batch, kv_heads, tokens, groups, head_dim), (0, 2, 1, 3, 4))
    quantized, full, local = (
        x / heads
        for x in masses(
            splits, results.received[:, :, :used], results.step_peaks[..., :used], peak, inverse, counted[..., :used]
        )
    )
    ring_windows = ring // window
    return out.reshape(batch, tokens, heads, head_dim), Mass(
        sink=local[:, ring_windows:].sum(axis=1),
        ring=local[:, :ring_windows],
        full=None if tiers.full is None else full[:, : tiers.full.shape[2]],
        quantized=None if tiers.quantized is None else quantized[:, : tiers.quantized.key_params.shape[2]],
    )


def _rows(q: Float[Array, "B T H D"], kv_heads: int, row_blocks: int) -> Float[Array, "B N rows 2 halfD"]:
    """Query rows that share a KV head, filled up with zeros, in units of log2 e."""
    batch, tokens, heads, head_dim = q.shape
    rows = q.astype(jnp.float32) * np.float32(head_dim**-0.5 / np.log(2.0))
    rows = rows.reshape(batch, tokens, kv_heads, heads // kv_heads, head_dim)
    rows = jnp.transpose(rows, (0, 2, 1, 3, 4)).reshape(batch, kv_heads, -1, head_dim)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, row_blocks * ROWS - rows.shape[2]), (0, 0)))
    return rows.reshape(batch, kv_heads * row_blocks, ROWS, 2, head_dim // 2)


def _pad_last(x: Float[Array, "*n _"], size: int) -> Float[Array, "*n size"]:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])


def _pieces(x: Float[Array, "*n halfD"], shape: Shape) -> Float[Array, "*n pieces piece"]:
    return _pad_last(x, shape.pieces * shape.piece).reshape(*x.shape[:-1], shape.pieces, shape.piece)


def _group_starts(shape: Shape) -> Int[Array, "groups block"]:
    starts = jnp.arange(0, shape.window, shape.group, dtype=jnp.int32)
    return jnp.broadcast_to(starts[:, None], (shape.groups, QUANTIZED_BLOCK))


def _turn_back(
    rows: Float[Array, "B N rows 2 halfD"], inv_freq: Float[Array, "halfD"], shape: Shape
) -> Float[Array, "B N group pieces 2 rows piece"]:
    """Queries turned back by 0, 1, .. positions for the tokens of a group, float16."""
    angles = jnp.arange(shape.group, dtype=jnp.float32)[:, None, None] * inv_freq
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    low, high = rows[:, :, None, :, 0], rows[:, :, None, :, 1]
    turned = jnp.stack([low * cos + high * sin, high * cos - low * sin], axis=3)
    return jnp.moveaxis(_pieces(turned.astype(jnp.float16), shape), -2, 3)


def _parts(rows: Float[Array, "B N rows channels"], kv_dtype: str) -> Float[Array, "B N parts rows channels"]:
    """Queries in ``kv_dtype``; for bfloat16, whose eight bits are too few, as a sum of two."""
    parts = [rows.astype(kv_dtype)]
    if kv_dtype == "bfloat16":
        # XLA may drop a cast there and back, but not this
        rounded = lax.reduce_precision(rows, exponent_bits=8, mantissa_bits=7)
        parts.append((rows - rounded).astype(kv_dtype))
    return jnp.stack(parts, axis=2)


def _call(refs: Refs, splits: Splits, shape: Shape, row_blocks: int, rows: int, kv_dtype: str) -> Results:
    batch, programs = refs.turned.shape[:2]

    def array(*axes: int) -> Any:
        return jax.ShapeDtypeStruct((batch, programs, *axes), jnp.float32)

    out_shape = Results(
        peaks=array(splits.programs, ROWS),
        totals=array(splits.programs, ROWS),
        mixed=array(splits.programs, ROWS, shape.channels),
        received=array(ROWS, splits.windows),
        step_peaks=array(splits.steps, ROWS),
    )
    leaves, tree = jax.tree.flatten(refs)

    def kernel(*pointers) -> None:
        inputs = jax.tree.unflatten(tree, pointers[: len(leaves)])
        _kernel(inputs, Results(*pointers[len(leaves) :]), splits, shape, row_blocks, rows, kv_dtype)

    call = triton.pallas_call(
        kernel,
        grid=(splits.programs, programs, batch),
        out_shape=out_shape,
        warps=WARPS,
        stages=stages(shape.window, shape.head_dim, kv_dtype),
        interpret=shape.interpret,
        name="tiered_decode_attention",
    )
    return call(*leaves)


def _kernel(
    refs: Refs, results: Results, splits: Splits, shape: Shape, row_blocks: int, rows: int, kv_dtype: str
) -> None:
    split, program, row = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    head = program // row_blocks
    place = Place(refs.layer[0], row, head)
    real_row = program % row_blocks * ROWS + triton.iota(ROWS) < rows  # rows that fill up are not written

    def write_step(sums: online.Sums, received: Array, step: Array, window: Array) -> None:
        results.step_peaks[row, program, step] = sums.peak
        target = (row, program, slice(None), pl.ds(window, received.shape[1]))
        mask = jnp.broadcast_to(real_row[:, None], received.shape)
        triton.store(results.received, *target, value=received, mask=mask)

    def write(sums: online.Sums) -> None:
        results.peaks[row, program, split] = sums.peak
        results.totals[row, program, split] = sums.total.sum(axis=1)
        mixed = sums.mixed + sums.constant.sum(axis=1)[:, None]
        mask = jnp.broadcast_to(real_row[:, None], mixed.shape)
        triton.store(results.mixed, row, program, split, value=mixed, mask=mask)

    def quantized_windows() -> None:
        windows = refs.tiers.quantized
        assert windows is not None
        slots = windows.key_params.shape[2]

        def queries(t: int, piece: int, i: int) -> Array:
            return refs.turned[row, program, t, piece, i]

        def angles(piece: int) -> tuple[Array, tuple[Array, Array] | None]:
            bias = refs.key_bias
            return refs.inv_freq[piece], None if bias is None else (bias[head, 0, piece], bias[head, 1, piece])

        def body(step: Array, sums: online.Sums) -> online.Sums:
            block, index = lax.div(step, jnp.int32(shape.groups)), lax.rem(step, jnp.int32(shape.groups))
            group = Group(index, None if refs.group_starts is None else refs.group_starts[index])
            slot = block * QUANTIZED_BLOCK + triton.iota(QUANTIZED_BLOCK)
            sums, received = quantized_block(
                sums,
                queries,
                QuantizedWindows(*windows),
                refs.tiers.quantized_starts,
                jnp.minimum(slot, slots - 1),
                slot < slots,
                place,
                angles,
                shape,
                group,
            )
            write_step(sums, received, step, step * QUANTIZED_BLOCK)
            return sums

        state = online.empty(ROWS, QUANTIZED_BLOCK, shape.channels)
        write(lax.fori_loop(*share(splits, split, quantized=True), body, state))

    def dense_windows() -> None:
        row_positions, newest = refs.row_positions[row, program], refs.newest[row]
        parts = [refs.queries[row, program, i] for i in range(refs.queries.shape[2])]

        def take_in(
            step: Array, sums: online.Sums, ref, index: tuple[Array, ...], seen: Array, attended: Array
        ) -> online.Sums:
            def load(first: Array, count: int) -> Array:
                return triton.columns(ref, (place.layer, row, *index), first, count, shape.channels)

            sums, received = dense_block(sums, parts, load, seen, attended, head, kv_dtype, shape)
            window = splits.quantized * QUANTIZED_BLOCK + step * splits.dense_windows
            write_step(sums, received, splits.quantized + step, window)
            return sums

        def full_step(step: Array, sums: online.Sums) -> online.Sums:
            ref, valid = refs.tiers.full, refs.tiers.full_valid
            assert ref is not None and valid is not None
            token = step * splits.dense + triton.iota(splits.dense)
            slot, within = lax.div(token, jnp.int32(shape.window)), lax.rem(token, jnp.int32(shape.window))
            exists, slot = slot < ref.shape[2], jnp.minimum(slot, ref.shape[2] - 1)
            attended = (valid[row, slot] != 0) & exists
            seen = jnp.broadcast_to(attended[None, :], (ROWS, splits.dense))
            return take_in(step, sums, ref, (slot, within), seen, attended)

        def local_step(step: Array, sums: online.Sums) -> online.Sums:
            ref = refs.tiers.local
            token = (step - splits.full) * splits.dense + triton.iota(splits.dense)
            exists, token = token < ref.shape[2], jnp.minimum(token, ref.shape[2] - 1)
            position = refs.tiers.local_positions[row, token]
            seen = (position[None, :] <= row_positions[:, None]) & exists[None, :]
            return take_in(step, sums, ref, (token,), seen, (position <= newest) & exists)

        first, last = share(splits, split, quantized=False)
        state = online.empty(ROWS, splits.dense, shape.channels)
        if splits.full:
            state = lax.fori_loop(first, jnp.minimum(last, splits.full), full_step, state)
        write(lax.fori_loop(jnp.maximum(first, splits.full), last, local_step, state))

    if splits.quantized:
        pl.when(split < splits.quantized_programs)(quantized_windows)
        pl.when(split >= splits.quantized_programs)(dense_windows)
    else:
        dense_windows()
