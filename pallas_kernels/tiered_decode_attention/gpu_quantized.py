# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A block of quantized windows on a GPU: from packed words to scores and mixed values.

A key of token t at position ``start + t`` is ``R(start + t) (scale * code + offset)`` with R the rotation of RoPE. R(t)
goes to the query, which is the same for all windows, so that W turned queries are made once. What is left is the same
linear map for all tokens of a window: two channels that turn together take

    low = a code_low + b code_high + c,   high = d code_low + e code_high + f

with the six numbers made once a window. So neither rotation nor dequantization is done token by token: a pair of
channels takes four multiply-adds. Value scales fold into the weights, value offsets into a sum of their own.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt16

from pallas_kernels.packing import planes
from pallas_kernels.quantized_windows import QuantizedWindows, scalars_per_head
from pallas_kernels.tiered_decode_attention import gpu_triton as triton
from pallas_kernels.tiered_decode_attention.gpu_angles import cos_sin
from pallas_kernels.tiered_decode_attention.gpu_online import Sums, attend


class Shape(NamedTuple):
    """Static numbers of a kernel.

    Attributes:
        kv_heads: K.
        head_dim: D.
        window: W.
        bits: bits of a code.
        rows: query rows of a program.
        interpret: run in plain JAX.
    """

    kv_heads: int
    head_dim: int
    window: int
    bits: int
    rows: int
    interpret: bool

    @property
    def half(self) -> int:
        """Channels of half a head, padded to a power of two: what Triton wants."""
        return max(16, 1 << (self.head_dim // 2 - 1).bit_length())

    @property
    def channels(self) -> int:
        """Channels of a head, padded."""
        return max(16, 1 << (self.head_dim - 1).bit_length())


class Place(NamedTuple):
    """Where a program works."""

    layer: Int[Array, ""]
    row: Int[Array, ""]
    head: Int[Array, ""]


def columns(
    ref, place: Place, slots: Int[Array, "n"], first: Array | int, count: int, size: int
) -> Shaped[Array, "n size"]:
    """``ref[layer, row, slots, first : first + count]``, filled up to ``size`` with zeros."""
    channel = triton.iota(size)
    mask = None if count == size else jnp.broadcast_to(channel[None, :] < count, (slots.shape[0], size))
    return triton.load(ref, place.layer, place.row, slots[:, None], (first + channel)[None, :], mask=mask)


def code_words(
    refs, place: Place, slots: Int[Array, "n"], first: Array | int, count: int, size: int, shape: Shape
) -> list[list[UInt16[Array, "n size"]]]:
    """Packed codes of some channels of a block of windows, as 16-bit words: for each plane, first tokens first."""
    row = shape.kv_heads * 2 * shape.head_dim
    found = []
    for ref, plane in zip(refs, planes(shape.bits, shape.window), strict=True):
        words = [columns(ref, place, slots, first + i * row, count, size) for i in range(plane.words)]
        found.append([half for word in words for half in _halves(word)])
    return found


def token_codes(words: list[list[UInt16[Array, "n size"]]], t: int, dtype: str, shape: Shape) -> Float[Array, "n size"]:
    """Codes of token t."""
    taken, fields = [], []
    for plane, halves in zip(planes(shape.bits, shape.window), words, strict=True):
        index, position = divmod(t * plane.bits, 16)
        taken.append(halves[index])
        fields.append(triton.Field(plane.bits, plane.low, position))
    return triton.decode(tuple(taken), tuple(fields), dtype, shape.interpret)


def _halves(word: Shaped[Array, "n size"]) -> list[UInt16[Array, "n size"]]:
    """A word as 16-bit words: two of these, channels side by side, fill a register."""
    if word.dtype == jnp.uint32:
        return [(word & jnp.uint32(0xFFFF)).astype(jnp.uint16), (word >> 16).astype(jnp.uint16)]
    return [word.astype(jnp.uint16)]


class KeyMap(NamedTuple):
    """The map from codes to keys turned by the angle of the window's start; float16, ``[windows, half]`` each."""

    low: tuple[Array, Array, Array]
    high: tuple[Array, Array, Array]


def _key_map(
    windows: QuantizedWindows,
    place: Place,
    slots: Int[Array, "n"],
    starts: Int[Array, "n"],
    inv_freq: Float[Array, "halfD"],
    bias: tuple[Array, Array] | None,
    shape: Shape,
) -> KeyMap:
    half, size = shape.head_dim // 2, shape.half
    parameters = [
        _scale_offset(
            columns(windows.key_params, place, slots, place.head * shape.head_dim + i * half, half, size),
            windows.scalars,
            place,
            slots,
            shape,
        )
        for i in (0, 1)
    ]
    (low, low_offset), (high, high_offset) = parameters
    if bias is not None:
        low_offset, high_offset = low_offset + bias[0][None, :], high_offset + bias[1][None, :]
    cos, sin = cos_sin(starts, inv_freq, shape.interpret)

    def made(*numbers: Array) -> tuple[Array, Array, Array]:
        first, second, third = (triton.to_half(x, shape.interpret) for x in numbers)
        return first, second, third

    return KeyMap(
        low=made(low * cos, -high * sin, low_offset * cos - high_offset * sin),
        high=made(low * sin, high * cos, low_offset * sin + high_offset * cos),
    )


def _scale_offset(
    words: Shaped[Array, "n half"], scalars, place: Place, slots: Int[Array, "n"], shape: Shape
) -> tuple[Float[Array, "n half"], Float[Array, "n half"]]:
    if words.dtype == jnp.uint32:  # two bfloat16, each the upper half of a float32
        return _float(words << 16), _float(words & jnp.uint32(0xFFFF0000))
    numbers = [_scalar(scalars, place, slots, 2 * shape.window + i, shape, 8)[:, None] for i in range(4)]
    low_scale, step_scale, low_offset, step_offset = numbers
    wide = words.astype(jnp.uint32)
    # a byte as the upper bits of a fraction behind 1.0: no conversion from integer
    one, fraction = jnp.uint32(0x3F800000), jnp.uint32(0xFF << 15)
    scale, offset = _float(wide << 15 & fraction | one), _float(wide << 7 & fraction | one)
    step_scale, step_offset = step_scale * 256.0, step_offset * 256.0
    return scale * step_scale + (low_scale - step_scale), offset * step_offset + (low_offset - step_offset)


def _float(bits: Shaped[Array, "*n"]) -> Float[Array, "*n"]:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _scalar(scalars, place: Place, slots: Int[Array, "n"], index: int, shape: Shape, param_bits: int) -> Array:
    """Number ``index`` of this head, of every slot."""
    column = place.head * scalars_per_head(shape.window, param_bits) + index
    bits = triton.load(scalars, place.layer, place.row, slots, column)
    return _float(bits.astype(jnp.uint32) << 16)


def quantized_block(
    sums: Sums,
    queries,
    windows: QuantizedWindows,
    starts_ref,
    slots: Int[Array, "n"],
    present: Bool[Array, "n"],
    place: Place,
    inv_freq: Float[Array, "halfD"],
    bias: tuple[Array, Array] | None,
    shape: Shape,
) -> tuple[Sums, Float[Array, "rows n"]]:
    """Attention to a block of quantized windows.

    Args:
        sums: state.
        queries: ``t -> (low, high)``, float16 ``[rows, half]``: the two halves of the queries turned back by t.
        windows: refs to the stacks.
        starts_ref: ref ``[B, Q]``.
        slots: slots of the block, all of which exist.
        present: false where a slot stands there only to fill the block.
        place: where.
        inv_freq: RoPE frequencies, zero where channels are padding.
        bias: the two halves of the key bias, or None.
        shape: static numbers.

    Returns:
        The state, and the weight of each window relative to its ``peak``.
    """
    starts = triton.load(starts_ref, place.row, slots)
    attended = present & (starts >= 0)
    half = shape.head_dim // 2
    first = place.head * 2 * shape.head_dim
    keys = [code_words(windows.codes, place, slots, first + i * half, half, shape.half, shape) for i in (0, 1)]
    values = code_words(windows.codes, place, slots, first + shape.head_dim, shape.head_dim, shape.channels, shape)
    key_map = _key_map(windows, place, slots, starts, inv_freq, bias, shape)
    param_bits = 8 if windows.key_params.dtype == jnp.uint16 else 16

    def scores(t: int) -> Float[Array, "rows n"]:
        codes = [token_codes(words, t, "float16", shape) for words in keys]
        turned = []
        for first, second, constant in key_map:
            inner = triton.multiply_add(second, codes[1], constant, shape.interpret)
            turned.append(triton.multiply_add(first, codes[0], inner, shape.interpret))
        low, high = queries(t)
        logits = triton.dot(low, turned[0]) + triton.dot(high, turned[1])
        return jnp.where(attended[None, :], logits, -jnp.inf)

    def add_values(t: int, weights: Array, constant: Array, mixed: Array) -> tuple[Array, Array]:
        # what lies in a slot that is not attended may be NaN, which a weight of zero does not stop
        scale = jnp.where(attended, _scalar(windows.scalars, place, slots, t, shape, param_bits), 0.0)
        offset = jnp.where(attended, _scalar(windows.scalars, place, slots, shape.window + t, shape, param_bits), 0.0)
        scaled = (weights * scale[None, :]).astype(jnp.bfloat16)
        codes = token_codes(values, t, "bfloat16", shape)
        return constant + weights * offset[None, :], mixed + triton.mix(scaled, codes)

    return attend(sums, shape.window, scores, add_values)
