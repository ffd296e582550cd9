# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A block of quantized windows on TPU: unpacked, scaled, turned and multiplied without leaving the chip.

Windows stand on sublanes while keys are made and on lanes as scores, token by token: the mass of a window is then a
plain sum over its W score arrays.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from pallas_kernels.tiered_decode_attention import tpu_softmax as softmax
from pallas_kernels.tiered_decode_attention.tpu_parts import (
    high_half,
    interleaved_parts,
    low_half,
    product,
    stacked_parts,
    sum_parts,
)
from pallas_kernels.tiered_decode_attention.tpu_rows import SUBLANES
from pallas_kernels.tiered_decode_attention.tpu_shape import KernelShape
from pallas_kernels.tiered_decode_attention.tpu_tiles import LANES, column, load_tiles, store_tiles
from pallas_kernels.tiered_decode_attention.tpu_token_tiers import mix, own_rows
from pallas_kernels.tiered_decode_attention.tpu_trig import cos_sin_lanes
from pallas_kernels.tiered_decode_attention.tpu_words import (
    PAIRS,
    float_codes,
    locate,
    mantissa_codes,
    pair_rows,
    stage,
)


class QuantizedRefs:
    """Refs of one block, leading axes taken off."""

    def __init__(self, planes: list[Any], key_params: Any, scalars: Any, starts: Any, inv_freq: Any) -> None:
        self.planes, self.key_params, self.scalars = planes, key_params, scalars
        self.starts, self.inv_freq = starts, inv_freq


def select_numbers(shape: KernelShape, s: Any) -> None:
    """Writes one-hot rows that pick the scale and the offset of a tile row's head and a token from ``scalars``.

    The matrix unit turns numbers from lanes to sublanes and repeats them over the rows of a head in one product.
    """
    size = s.selector.shape[1:]
    row, lane = (lax.broadcasted_iota(jnp.int32, size, axis) for axis in (0, 1))
    tile, token = lax.div(row, shape.window * SUBLANES), lax.rem(lax.div(row, SUBLANES), shape.window)
    inside = lax.div(lax.rem(row, SUBLANES), shape.rows.stride)  # 0 where a head fills a tile
    head = jnp.minimum(tile * shape.rows.tile_heads + inside, shape.rows.kv_heads - 1)
    for index in (0, 1):
        wanted = head * shape.numbers + index * shape.window + token
        s.selector[index] = jnp.where(lane == wanted, 1.0, 0.0).astype(jnp.bfloat16)


def attend(shape: KernelShape, refs: QuantizedRefs, block: Any, s: Any) -> None:
    """Adds a block of windows to the softmax."""
    _turn(shape, refs, s)
    _transpose_numbers(shape, refs, s)
    for tile in range(shape.rows.tiles):
        _attend_tile(shape, refs, block, tile, s)


def _turn(shape: KernelShape, refs: QuantizedRefs, s: Any) -> None:
    """Cosine and sine of the starts, once for all heads."""
    channels, half = shape.head_dim, shape.head_dim // 2
    starts = column(refs.starts[0:1, :].astype(jnp.float32))
    if channels > LANES:
        starts = jnp.concatenate([starts] * (-(-channels // LANES)), axis=1)
    turned = cos_sin_lanes(starts[:, :channels], refs.inv_freq[...])
    cos, sin = turned[:, :half], turned[:, half:]
    store_tiles(s.trig, jnp.concatenate([cos, cos, sin, sin], axis=1), 0)
    if shape.bias:
        store_tiles(s.cos_sin, turned, 0)


def _rows(shape: KernelShape, sub: Any) -> tuple[Any, Any, Any]:
    """Slices of a sub-block's pairs, and of its even and odd windows."""
    start, stride = pair_rows(sub, shape.phases)
    even, odd = (pl.ds(2 * start + parity, PAIRS, stride=2 * stride) for parity in (0, 1))
    return pl.ds(start, PAIRS, stride=stride) if stride > 1 else pl.ds(start, PAIRS), even, odd


def _transpose_numbers(shape: KernelShape, refs: QuantizedRefs, s: Any) -> None:
    """Value scales and offsets from ``[windows, numbers]`` to ``[tile, token, row, windows]``."""
    pairs = pltpu.bitcast(refs.scalars[...], jnp.int32)
    used = shape.rows.kv_heads * shape.numbers
    if used < shape.scalar_row:  # padding may hold NaN
        lane = lax.broadcasted_iota(jnp.int32, pairs.shape, 1)
        pairs = jnp.where(lane < used, pairs, 0)
    store_tiles(s.numbers, pairs, 0)
    shown = (shape.rows.tiles, shape.window, SUBLANES, LANES)

    def one_sub_block(sub: Any, carry: None) -> None:
        lanes = pl.ds(sub * LANES, LANES)
        valid = refs.starts[1:2, lanes] >= 0
        rows = load_tiles(s.numbers, _rows(shape, sub)[0], shape.scalar_row)
        numbers = [pltpu.bitcast(rows, jnp.bfloat16)]
        scale = product(s.selector[0], numbers) * 2.0**shape.bits
        offset = product(s.selector[1], numbers) - scale  # codes come as 1 + code / 2**bits
        s.value_scale[..., lanes] = jnp.where(valid, scale, 0.0).reshape(shown)
        s.value_offset[..., lanes] = jnp.where(valid, offset, 0.0).reshape(shown)

    shape.loop(shape.sub_blocks, one_sub_block, None)


def _attend_tile(shape: KernelShape, refs: QuantizedRefs, block: Any, tile: int, s: Any) -> None:
    rows = shape.rows
    here = slice(tile * rows.rows, (tile + 1) * rows.rows)
    held = {head: (tile % 2) * rows.tile_heads + index for index, head in enumerate(rows.heads(tile))}
    scores = s.scores.at[tile % 2]
    for head, slot in held.items():
        _stage_head(shape, refs, head, slot, s)
    shape.loop(shape.sub_blocks, lambda sub, carry: _score(shape, refs, tile, held, sub, s), None)
    peak = softmax.raise_peak(s, here, [scores[token] for token in range(shape.window)])
    s.block_peak[block, here] = jnp.broadcast_to(peak, (rows.rows, LANES))
    zeros = jnp.zeros((rows.rows, LANES), jnp.float32)

    def one_sub_block(sub: Any, mixed: Array) -> Array:
        lanes = pl.ds(sub * LANES, LANES)

        def one_token(token: Any, carry: Any) -> Any:
            received, constant, mixed = carry
            weights = jnp.exp2(scores[token, :, lanes] - peak)
            scale, offset = s.value_scale[tile, token, :, lanes], s.value_offset[tile, token, :, lanes]
            if rows.rows > SUBLANES:  # one head: its numbers are the same in all rows
                scale, offset = scale[:1], offset[:1]
            stacked = stacked_parts(weights * scale, shape.query_parts)
            word, bit = locate(token, shape.bits)
            values = []
            for slot in held.values():
                codes = load_tiles(s.value_words.at[slot, word], pl.ds(sub * PAIRS, PAIRS), shape.head_dim)
                values.append(mantissa_codes(codes, bit, shape.bits))
            # side by side: a matrix unit of v6e and later is as wide as two heads
            both = jnp.concatenate(values, axis=1) if len(values) > 1 else values[0]
            return received + weights, constant + weights * offset, mixed + mix(stacked, [both])

        received, constant, mixed = shape.loop(shape.window, one_token, (zeros, zeros, mixed))
        s.weights[block, here, lanes] = received
        s.total[here] += received
        s.constant[here] += constant
        return mixed

    mixed = jnp.zeros((shape.stacked_rows, len(held) * shape.head_dim), jnp.float32)
    mixed = shape.loop(shape.sub_blocks, one_sub_block, mixed)
    by_head = [mixed[:, i * shape.head_dim : (i + 1) * shape.head_dim] for i in range(len(held))]
    s.mixed[here] += own_rows(shape, [sum_parts(x, rows.rows) for x in by_head])


def _stage_head(shape: KernelShape, refs: QuantizedRefs, head: int, slot: int, s: Any) -> None:
    """Codes and key parameters of a head into words that can be read row by row."""
    channels = shape.head_dim
    held = [getattr(s, f"held{index}").at[slot] for index in range(len(refs.planes))]
    code = {"bits": shape.bits, "window": shape.window}
    first = head * 2 * channels
    stage(s.key_words.at[slot], refs.planes, held, first, channels, twice=shape.doubled, **code)
    stage(s.value_words.at[slot], refs.planes, held, first + channels, channels, twice=False, **code)
    params = refs.key_params[:, head * channels : (head + 1) * channels]
    store_tiles(s.params.at[slot], pltpu.bitcast(params, jnp.int32), 0)


def _score(shape: KernelShape, refs: QuantizedRefs, tile: int, held: dict[int, int], sub: Any, s: Any) -> None:
    """Writes the scores of the W tokens of 128 windows."""
    width = 2 * shape.head_dim
    _, even_rows, odd_rows = _rows(shape, sub)
    turn = [load_tiles(s.trig, each, width) for each in (even_rows, odd_rows)]
    by_head = []
    shifts: Any = 0.0
    for head, slot in held.items():
        params = _key_parameters(shape, head, slot, sub, s)
        by_head.append((head, slot, [x * _twice(y[0]) for x, y in zip(turn, params, strict=True)]))
        offset = [x * _twice(y[1]) for x, y in zip(turn, params, strict=True)]
        queries = s.queries[head].reshape(-1, width)
        shifts = shifts + product(queries, interleaved_parts(offset, shape.key_parts, shape.interpret))
    if shape.bias:
        even, odd = (load_tiles(s.cos_sin, each, shape.head_dim) for each in (even_rows, odd_rows))
        parts = interleaved_parts((even, odd), 3, shape.interpret)
        shifts = shifts + product(s.bias_rows[tile].reshape(-1, shape.head_dim), parts)
    by_token = shifts.reshape(shape.window, -1, shape.rows.rows, LANES)
    s.shifts[tile % 2] = sum((by_token[:, part] for part in range(1, by_token.shape[1])), by_token[:, 0])
    lanes = pl.ds(sub * LANES, LANES)
    valid = refs.starts[1:2, lanes] >= 0

    def one_token(token: Any, carry: None) -> None:
        word, bit = locate(token, shape.bits)
        found: Any = 0.0
        for head, slot, scale in by_head:
            stored = width if shape.doubled else width // 2
            codes = load_tiles(s.key_words.at[slot, word], pl.ds(sub * PAIRS, PAIRS), stored)
            numbers = float_codes(codes, bit, shape.bits)
            if not shape.doubled:
                numbers = [_twice(x) for x in numbers]
            keys = [x * y for x, y in zip(numbers, scale, strict=True)]
            found = found + product(s.queries[head, token], interleaved_parts(keys, shape.key_parts, shape.interpret))
        found = sum_parts(found, shape.rows.rows) * _power_of_two(-bit) + s.shifts[tile % 2, token]
        s.scores[tile % 2, token, :, lanes] = jnp.where(valid, found, softmax.MASKED)

    shape.loop(shape.window, one_token, None)


def _power_of_two(exponent: Any) -> Any:
    if isinstance(exponent, int):
        return 2.0**exponent
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)


def _twice(x: Float[Array, "n D"]) -> Float[Array, "n 2*D"]:
    return jnp.concatenate([x, x], axis=1)


def _key_parameters(shape: KernelShape, head: int, slot: int, sub: Any, s: Any) -> list[tuple[Array, Array]]:
    """Scale and offset of a head's channels, for even and for odd windows, float32."""
    pairs, *by_parity = _rows(shape, sub)
    if shape.param_bits == 16:
        words = [load_tiles(s.params.at[slot], each, shape.head_dim) for each in by_parity]
        return [(low_half(word), high_half(word)) for word in words]
    words = load_tiles(s.params.at[slot], pairs, shape.head_dim)
    numbers = load_tiles(s.numbers, pairs, shape.scalar_row)
    first = head * shape.numbers + 2 * shape.window
    made = []
    for half, shift in ((low_half, 0), (high_half, 16)):
        low_scale, step_scale, low_offset, step_offset = (
            half(numbers[:, first + index : first + index + 1]) for index in range(4)
        )
        scale = ((words >> shift) & 0xFF).astype(jnp.float32)
        offset = ((words >> (shift + 8)) & 0xFF).astype(jnp.float32)
        made.append((low_scale + step_scale * scale, low_offset + step_offset * offset))
    return made
