# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Decode attention over a tiered cache in one Mosaic kernel for TPU.

The grid walks over sequences and, within one, over sinks and ring, blocks of full windows and blocks of quantized
windows. All heads of a block are in one step: cosines and sines are made once for them. The stacks are read in place,
by a prefetched layer index. Softmax and mass are float32. Matrix operands are bfloat16 for a bfloat16 cache: queries
and probabilities as two parts each (16 bits of mantissa), dequantized keys as one, value codes exactly; for other
caches everything has three parts, which is float32 (`tpu_parts`).
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.packing import BITS, WINDOWS
from pallas_kernels.rope import cos_sin
from pallas_kernels.tiered_decode_attention import tpu_quantized_tier as quantized_tier
from pallas_kernels.tiered_decode_attention import tpu_queries as query_rows
from pallas_kernels.tiered_decode_attention import tpu_softmax as softmax
from pallas_kernels.tiered_decode_attention import tpu_token_tiers as token_tiers
from pallas_kernels.tiered_decode_attention.base import Mass, Tiers
from pallas_kernels.tiered_decode_attention.tpu_parts import sum_parts
from pallas_kernels.tiered_decode_attention.tpu_rows import QueryRows
from pallas_kernels.tiered_decode_attention.tpu_shape import KernelShape
from pallas_kernels.tiered_decode_attention.tpu_tiles import LANES, column
from pallas_kernels.tiered_decode_attention.tpu_words import block_order

_VMEM_BYTES = 60 << 20  # a v7x core has 64 MiB, the others 128; scratch of the largest shapes passes XLA's default
_UNSEEN = np.iinfo(np.int32).min


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
    """`base.tiered_decode_attention`, which says what the arguments are, as a TPU kernel.

    Args:
        interpret: run in Pallas' interpreter, on any platform.

    Returns:
        Output in float32 and the mass per window.

    Raises:
        ValueError: `unsupported` says why.
    """
    shape = kernel_shape(
        q, tiers, key_bias, kv_heads=kv_heads, window=window, bits=bits, kv_dtype=kv_dtype, interpret=interpret
    )
    batch, rows = q.shape[0], shape.rows
    operands = _operands(shape, q, q_positions, q_valid, tiers, inv_freq, key_bias)
    outputs = _outputs(shape, batch)
    names = list(operands), list(outputs), list(shape.scratch())
    call = pl.pallas_call(
        partial(_kernel, shape, names),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, shape.steps),
            in_specs=[spec for _, spec in operands.values()],
            out_specs=[spec for _, spec in outputs.values()],
            scratch_shapes=list(shape.scratch().values()),
        ),
        out_shape=[array for array, _ in outputs.values()],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), vmem_limit_bytes=_VMEM_BYTES
        ),
        interpret=interpret,
        name="tiered_decode_attention",
    )
    made = call(layer.reshape(1).astype(jnp.int32), *(array for array, _ in operands.values()))
    found = dict(zip(outputs, made, strict=True))
    local = found["local_mass"][:, 0]
    return rows.restore(found["out"]), Mass(
        sink=local[:, ring:].sum(axis=-1),
        ring=local[:, :ring].reshape(batch, -1, window).sum(axis=-1),
        full=None if not shape.full_slots else found["full_mass"].reshape(batch, -1)[:, : shape.full_slots],
        quantized=None if not shape.code_slots else _slot_order(shape, found["mass"]),
    )


def kernel_shape(
    q: Any,
    tiers: Tiers,
    key_bias: Any,
    *,
    kv_heads: int,
    window: int,
    bits: int,
    kv_dtype: str,
    interpret: bool = False,
) -> KernelShape:
    """Static numbers of the kernel for these arguments, which may be abstract.

    Raises:
        ValueError: `unsupported` says why.
    """
    if reason := unsupported(q, tiers, kv_heads=kv_heads, window=window, bits=bits, kv_dtype=kv_dtype):
        raise ValueError(reason)
    _, tokens, heads, channels = q.shape
    quantized = tiers.quantized
    return KernelShape(
        rows=QueryRows(kv_heads, heads // kv_heads, tokens),
        head_dim=channels,
        window=window,
        bits=bits,
        param_bits=8 if quantized is not None and quantized.key_params.dtype == jnp.uint16 else 16,
        kv_dtype=str(jnp.dtype(kv_dtype)),
        local_rows=tiers.local.shape[2],
        full_slots=0 if tiers.full is None else tiers.full.shape[2],
        code_slots=0 if quantized is None else quantized.key_params.shape[2],
        scalar_row=0 if quantized is None else quantized.scalars.shape[3],
        exact=jnp.dtype(kv_dtype) != jnp.bfloat16,
        bias=key_bias is not None and quantized is not None,
        interpret=interpret,
    )


def unsupported(q: Any, tiers: Tiers, *, kv_heads: int, window: int, bits: int, kv_dtype: str) -> str | None:
    """Why the kernel does not take these shapes, or None."""
    tokens, heads, channels = q.shape[1:]
    if heads % kv_heads:
        return f"{heads} query heads are no multiple of {kv_heads} KV heads"
    if tokens > window:
        return f"{tokens} query tokens: the kernel takes from 1 to the {window} of a window"
    if bits not in BITS or window not in WINDOWS:
        return f"no bit layout for bits={bits}, window={window}; bits in {BITS}, window in {WINDOWS}"
    if str(jnp.dtype(kv_dtype)) not in ("bfloat16", "float16", "float32"):
        return f"kv_dtype={kv_dtype}: the kernel takes bfloat16, float16 and float32"
    if channels % 2:
        return f"head_dim {channels} is odd: RoPE turns channels in pairs"
    return None


def _slot_order(shape: KernelShape, mass: Float[Array, "B blocks n"]) -> Float[Array, "B Q"]:
    """Masses from the order of lanes to that of slots."""
    if shape.phases > 1:
        lane_of_window = np.argsort(block_order(shape.block_windows, shape.phases))
        mass = mass[..., lane_of_window]
    return mass.reshape(mass.shape[0], -1)[:, : shape.code_slots]


def _operands(
    shape: KernelShape,
    q: Array,
    q_positions: Array,
    q_valid: Array,
    tiers: Tiers,
    inv_freq: Array,
    key_bias: Array | None,
) -> dict[str, tuple[Array, pl.BlockSpec]]:
    """Arrays by name, and the block of each that a step of the grid sees."""
    batch, tokens, heads, channels = q.shape
    rows = shape.rows
    made: dict[str, tuple[Array, pl.BlockSpec]] = {}

    def add(name: str, array: Array, *block: int, at: Any) -> None:
        made[name] = array, pl.BlockSpec(block, at)

    def per_sequence(b: Any, step: Any, layer: Any) -> tuple:
        return b, 0, 0

    def constant(count: int) -> Any:
        return lambda b, step, layer: (0,) * count

    # exp2 is what the hardware has
    scaled = q.astype(jnp.float32) * np.float32(channels**-0.5 / np.log(2))
    add("q", rows.arrange(scaled), 1, rows.total, channels, at=per_sequence)
    spread = (batch, tokens, heads, 1)
    valid = jnp.broadcast_to(q_valid[..., None, None], spread)
    real = rows.arrange(valid)
    limit = rows.arrange(jnp.broadcast_to(q_positions[..., None, None], spread))
    add("limit", jnp.where(real, limit, _UNSEEN), 1, rows.total, 1, at=per_sequence)
    add("share", jnp.where(real, np.float32(1 / heads), 0.0), 1, rows.total, 1, at=per_sequence)

    positions = tiers.local_positions
    add("local_lanes", positions[:, None, :], 1, 1, shape.local_rows, at=per_sequence)
    add("local_column", positions[:, :, None], 1, shape.local_rows, 1, at=per_sequence)
    add("local", tiers.local, 1, 1, *tiers.local.shape[2:], at=lambda b, step, layer: (layer[0], b, 0, 0))

    steps = jnp.concatenate([jnp.tile(x, (1, 2)) for x in cos_sin(jnp.arange(shape.query_tokens), inv_freq)], axis=1)
    add("offsets", steps[:, None, :], shape.query_tokens, 1, 2 * channels, at=constant(3))

    if tiers.full is not None:
        assert tiers.full_valid is not None
        size, blocks = shape.full_block, shape.full_blocks

        def full_block(step: Any) -> Any:
            return jnp.clip(step - 1, 0, blocks - 1)

        valid = jnp.pad(tiers.full_valid.astype(jnp.int32), ((0, 0), (0, size * blocks - shape.full_slots)))
        valid = jnp.repeat(valid, shape.window, axis=1).reshape(batch, blocks, 1, size * shape.window)
        at = lambda b, step, layer: (b, full_block(step), 0, 0)  # noqa: E731
        add("full_valid", valid, 1, 1, 1, size * shape.window, at=at)
        at = lambda b, step, layer: (layer[0], b, full_block(step), 0, 0)  # noqa: E731
        add("full", tiers.full, 1, 1, size, *tiers.full.shape[3:], at=at)

    if tiers.quantized is not None:
        assert tiers.quantized_starts is not None
        size, blocks, first = shape.block_windows, shape.blocks, 1 + shape.full_blocks

        def code_block(step: Any) -> Any:
            return jnp.clip(step - first, 0, blocks - 1)

        padding = ((0, 0), (0, size * blocks - shape.code_slots))
        starts = jnp.pad(tiers.quantized_starts, padding, constant_values=-1).reshape(batch, blocks, size)
        in_lanes = starts[..., block_order(size, shape.phases)] if shape.phases > 1 else starts
        at = lambda b, step, layer: (b, code_block(step), 0, 0)  # noqa: E731
        add("starts", jnp.stack([starts, in_lanes], axis=2), 1, 1, 2, size, at=at)
        at = lambda b, step, layer: (layer[0], b, code_block(step), 0)  # noqa: E731
        stacks = {f"plane{index}": plane for index, plane in enumerate(tiers.quantized.codes)}
        stacks |= {"key_params": tiers.quantized.key_params, "scalars": tiers.quantized.scalars}
        for name, stack in stacks.items():
            add(name, stack, 1, 1, size, stack.shape[3], at=at)
        add("inv_freq", jnp.tile(inv_freq, 2)[None], 1, channels, at=constant(2))
        if key_bias is not None:
            bias = key_bias.astype(jnp.float32)[:, None, :]
            add("key_bias", bias, *bias.shape, at=constant(3))
    return made


def _outputs(shape: KernelShape, batch: int) -> dict[str, tuple[jax.ShapeDtypeStruct, pl.BlockSpec]]:
    sizes = {"out": (shape.rows.total, shape.head_dim), "local_mass": (1, shape.local_rows)}
    if shape.full_slots:
        sizes["full_mass"] = (shape.full_blocks, shape.full_block)
    if shape.code_slots:
        sizes["mass"] = (shape.blocks, shape.block_windows)
    return {
        name: (
            jax.ShapeDtypeStruct((batch, *size), jnp.float32),
            pl.BlockSpec((1, *size), lambda b, step, layer: (b, 0, 0)),
        )
        for name, size in sizes.items()
    }


def _kernel(shape: KernelShape, names: tuple[list[str], list[str], list[str]], layer: Any, *refs: Any) -> None:
    del layer  # the index maps use it
    flat = iter(refs)
    ins, outs, s = (SimpleNamespace(**{name: next(flat) for name in group}) for group in names)
    step = pl.program_id(1)

    @pl.when(step == 0)
    def _() -> None:
        softmax.start(s)
        query_rows.prepare(shape, ins.q, ins.offsets, ins.key_bias if shape.bias else None, s)
        if shape.code_slots:
            quantized_tier.select_numbers(shape, s)
        _local(shape, ins, s)

    if shape.full_slots:

        @pl.when((step >= 1) & (step <= shape.full_blocks))
        def _() -> None:
            _full(shape, ins, step - 1, s)

    if shape.code_slots:

        @pl.when(step > shape.full_blocks)
        def _() -> None:
            planes = [getattr(ins, name).at[0, 0] for name in names[0] if name.startswith("plane")]
            refs = quantized_tier.QuantizedRefs(
                planes, ins.key_params.at[0, 0], ins.scalars.at[0, 0], ins.starts.at[0, 0], ins.inv_freq
            )
            quantized_tier.attend(shape, refs, step - 1 - shape.full_blocks, s)

    @pl.when(step == shape.steps - 1)
    def _() -> None:
        _finish(shape, ins, outs, s)


def _local(shape: KernelShape, ins: Any, s: Any) -> None:
    limit = ins.limit[0]
    newest = jnp.max(limit, axis=0, keepdims=True)

    def store(rows: slice, weights: Array, stacked: Array, peak: Array) -> None:
        s.local_weights[rows] = weights
        s.local_peak[rows] = jnp.broadcast_to(peak, (weights.shape[0], LANES))

    token_tiers.attend(
        shape,
        lambda columns: ins.local[0, 0, :, columns],
        lambda rows: ins.local_lanes[0] <= limit[rows],
        ins.local_column[0] <= newest,
        s,
        store,
    )


def _full(shape: KernelShape, ins: Any, block: Any, s: Any) -> None:
    count = shape.full_block * shape.window
    valid = ins.full_valid[0, 0]
    kept = column(valid.astype(jnp.float32))[:, :1] > 0
    token, slot = (lax.broadcasted_iota(jnp.int32, (count, shape.full_block), axis) for axis in (0, 1))
    of_window = jnp.where(lax.div(token, shape.window) == slot, 1.0, 0.0).astype(jnp.bfloat16)

    def store(rows: slice, weights: Array, stacked: Array, peak: Array) -> None:
        received = token_tiers.mix(stacked, [of_window])
        s.full_weights[block, rows] = sum_parts(received, weights.shape[0])
        s.full_peak[block, rows] = jnp.broadcast_to(peak, (weights.shape[0], LANES))

    token_tiers.attend(
        shape,
        lambda columns: ins.full[0, 0, :, :, columns].reshape(count, -1),
        lambda rows: valid > 0,
        kept,
        s,
        store,
    )


def _finish(shape: KernelShape, ins: Any, outs: Any, s: Any) -> None:
    """Output and masses, scaled to the final peak and denominator."""
    inverse, constant = softmax.factors(s)
    outs.out[0] = (s.mixed[...] + constant) * inverse
    peak, share = s.peak[:, :1], ins.share[0] * inverse

    def mass(weights: Array, at_peak: Array) -> Array:
        return jnp.sum(weights * (share * jnp.exp2(at_peak[:, :1] - peak)), axis=0, keepdims=True)

    outs.local_mass[0] = mass(s.local_weights[...], s.local_peak[...])

    def tier(out: Any, weights: Any, peaks: Any) -> None:
        def one(block: Any, _: None) -> None:
            out[0, pl.ds(block, 1), :] = mass(weights[block], peaks[block])

        lax.fori_loop(0, weights.shape[0], one, None)

    if shape.full_slots:
        tier(outs.full_mass, s.full_weights, s.full_peak)
    if shape.code_slots:
        tier(outs.mass, s.weights, s.block_peak)
