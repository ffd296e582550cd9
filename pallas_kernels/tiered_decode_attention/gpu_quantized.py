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

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt16

from pallas_kernels.packing import planes
from pallas_kernels.quantized_windows import QuantizedWindows, scalars_per_head
from pallas_kernels.tiered_decode_attention import gpu_triton as triton
from pallas_kernels.tiered_decode_attention.gpu_angles import cos_sin
from pallas_kernels.tiered_decode_attention.gpu_online import Sums, attend

TOKENS = 8  # of a window that are taken in at a time: their scores are held in registers


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
    def group(self) -> int:
        """Tokens of a window that are taken in at a time: key maps of more would not fit the registers."""
        return min(self.window, TOKENS)

    @property
    def groups(self) -> int:
        """Groups of tokens in a window."""
        return self.window // self.group

    @property
    def half(self) -> int:
        """Channels of half a head, padded to a power of two: what Triton wants."""
        return max(16, 1 << (self.head_dim // 2 - 1).bit_length())

    @property
    def piece(self) -> int:
        """Channels of half a head that are worked on at a time: more, and their key map does not fit the registers."""
        return min(self.half, 32)

    @property
    def pieces(self) -> int:
        """Pieces of half a head."""
        return -(-self.head_dim // 2 // self.piece)

    def extent(self, piece: int) -> tuple[int, int]:
        """First channel of a piece in its half, and how many there are."""
        begin = piece * self.piece
        return begin, min(self.piece, self.head_dim // 2 - begin)

    @property
    def channels(self) -> int:
        """Channels of a head, padded."""
        return max(16, 1 << (self.head_dim - 1).bit_length())


class Place(NamedTuple):
    """Where a program works."""

    layer: Int[Array, ""]
    row: Int[Array, ""]
    head: Int[Array, ""]


class Group(NamedTuple):
    """Tokens of a window that are taken in at a time.

    Attributes:
        index: which of a window's groups.
        before: tokens of the window before it, for every window of a block; None if a window has one group. A vector
            that was loaded: from a number spread out, Triton would not find the way back, and take decoded keys
            through shared memory (LOG.md).
    """

    index: Int[Array, ""]
    before: Int[Array, "n"] | None


def code_words(
    refs,
    place: Place,
    slots: Int[Array, "n"],
    group: Group,
    first: Array | int,
    count: int,
    size: int,
    shape: Shape,
) -> list[list[UInt16[Array, "n size"]]]:
    """Packed codes of a group of tokens of some channels, as 16-bit words: for each plane, first tokens first."""
    rows, row = (place.layer, place.row, slots), shape.kv_heads * 2 * shape.head_dim
    found = []
    for ref, plane in zip(refs, planes(shape.bits, shape.window), strict=True):
        if group.before is None:
            words = [triton.columns(ref, rows, first + i * row, count, size) for i in range(plane.words)]
            found.append([half for word in words for half in _halves(word)])
            continue
        # a group lies in one word, since words have a multiple of its bits
        width, bits = 8 * plane.dtype.itemsize, shape.group * plane.bits
        index = lax.div(group.index * bits, jnp.int32(width))
        word = triton.columns(ref, rows, first + index * row, count, size)
        if bits == width:
            found.append(_halves(word))
        else:
            found.append([triton.bits_from(word, group.before * plane.bits & (width - 1), shape.interpret)])
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
    piece: int,
    inv_freq: Float[Array, "piece"],
    bias: tuple[Array, Array] | None,
    shape: Shape,
) -> KeyMap:
    half = shape.head_dim // 2
    begin, count = shape.extent(piece)
    parameters = [
        _scale_offset(
            triton.columns(
                windows.key_params,
                (place.layer, place.row, slots),
                place.head * shape.head_dim + i * half + begin,
                count,
                shape.piece,
            ),
            windows.scalars,
            place,
            slots,
            shape,
        )
        for i in (0, 1)
    ]
    (low, low_offset), (high, high_offset) = parameters
    if bias is not None:
        low_offset, high_offset = (
            triton.add(offset, jnp.broadcast_to(part[None, :], offset.shape), shape.interpret)
            for offset, part in zip((low_offset, high_offset), bias, strict=True)
        )
    cos, sin = cos_sin(starts, inv_freq, shape.interpret)
    cos, sin, minus_sin = (triton.to_half(x, shape.interpret) for x in (cos, sin, -sin))

    def turned(a: Array, b: Array) -> tuple[Array, Array, Array]:
        constant = triton.multiply(high_offset, b, shape.interpret)
        return (
            triton.multiply(low, a, shape.interpret),
            triton.multiply(high, b, shape.interpret),
            triton.multiply_add(low_offset, a, constant, shape.interpret),
        )

    return KeyMap(low=turned(cos, minus_sin), high=turned(sin, cos))


def _scale_offset(
    words: Shaped[Array, "n half"], scalars, place: Place, slots: Int[Array, "n"], shape: Shape
) -> tuple[Float[Array, "n half"], Float[Array, "n half"]]:
    """Scale and offset of the codes of each channel, float16."""
    if words.dtype == jnp.uint32:  # two bfloat16, each the upper half of a float32
        both = _float(words << 16), _float(words & jnp.uint32(0xFFFF0000))
        scale, offset = (triton.to_half(x, shape.interpret) for x in both)
        return scale, offset
    numbers = [_scalar(scalars, place, slots, 2 * shape.window + i, shape, 8) for i in range(4)]
    made = []
    for position, lowest, step in ((0, numbers[0], numbers[1]), (8, numbers[2], numbers[3])):
        # a step is small, 256 of them are not: float16 has few digits for small numbers
        share = triton.decode((words,), (triton.Field(8, 0, position),), "float16", shape.interpret, exponent=-8)
        step, lowest = (jnp.broadcast_to(x.astype(jnp.float16)[:, None], words.shape) for x in (256.0 * step, lowest))
        made.append(triton.multiply_add(share, step, lowest, shape.interpret))
    return made[0], made[1]


def _float(bits: Shaped[Array, "*n"]) -> Float[Array, "*n"]:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _scalar(scalars, place: Place, slots: Int[Array, "n"], index: Array | int, shape: Shape, param_bits: int) -> Array:
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
    angles,
    shape: Shape,
    group: Group,
) -> tuple[Sums, Float[Array, "rows n"]]:
    """Attention to a group of tokens of each window of a block.

    Args:
        sums: state.
        queries: ``(t, piece, i) -> [rows, piece]`` of half i of the queries turned back by t, float16.
        windows: refs to the stacks.
        starts_ref: ref ``[B, Q]``.
        slots: slots of the block, all of which exist.
        present: false where a slot stands there only to fill the block.
        place: where.
        angles: ``piece -> (inv_freq, bias)``: RoPE frequencies, zero where channels are padding, and the two halves of
            the key bias or None.
        shape: static numbers.
        group: which tokens.

    Returns:
        The state, and the weight of each window relative to its ``peak``.
    """
    starts = triton.load(starts_ref, place.row, slots)
    attended = present & (starts >= 0)
    if group.before is not None:
        starts = starts + group.before
    before = group.index * shape.group
    half = shape.head_dim // 2
    first = place.head * 2 * shape.head_dim
    param_bits = 8 if windows.key_params.dtype == jnp.uint16 else 16

    def scores(tokens: Sequence[int]) -> list[Float[Array, "rows n"]]:
        logits = [jnp.zeros((shape.rows, slots.shape[0]), jnp.float32) for _ in tokens]
        for piece in range(shape.pieces):
            begin, size = shape.extent(piece)
            keys = [
                code_words(windows.codes, place, slots, group, first + i * half + begin, size, shape.piece, shape)
                for i in (0, 1)
            ]
            inv_freq, bias = angles(piece)
            key_map = _key_map(windows, place, slots, starts, piece, inv_freq, bias, shape)
            for index, t in enumerate(tokens):
                codes = [token_codes(words, t, "float16", shape) for words in keys]
                for i, (first_factor, second_factor, constant) in enumerate(key_map):
                    inner = triton.multiply_add(second_factor, codes[1], constant, shape.interpret)
                    turned = triton.multiply_add(first_factor, codes[0], inner, shape.interpret)
                    logits[index] = logits[index] + triton.dot(queries(t, piece, i), turned)
        return [jnp.where(attended[None, :], x, -jnp.inf) for x in logits]

    @functools.cache
    def value_words() -> list[list[Array]]:
        # loaded when scores are done: before, their registers are needed for keys
        begin = first + shape.head_dim
        return code_words(windows.codes, place, slots, group, begin, shape.head_dim, shape.channels, shape)

    def add_values(t: int, weights: Array, constant: Array, mixed: Array) -> tuple[Array, Array]:
        # what lies in a slot that is not attended may be NaN, which a weight of zero does not stop
        scale = jnp.where(attended, _scalar(windows.scalars, place, slots, before + t, shape, param_bits), 0.0)
        offset = _scalar(windows.scalars, place, slots, shape.window + before + t, shape, param_bits)
        offset = jnp.where(attended, offset, 0.0)
        scaled = (weights * scale[None, :]).astype(jnp.bfloat16)
        codes = token_codes(value_words(), t, "bfloat16", shape)
        return constant + weights * offset[None, :], mixed + triton.mix(scaled, codes)

    return attend(sums, shape.group, scores, add_values)
