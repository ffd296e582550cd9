# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Packed codes on TPU: every bit layout of `packing` becomes words of two windows, 16 bits each.

A register holds 32-bit words in 8 sublanes; narrower arrays put 2 or 4 consecutive rows (here: windows) into one word.
Taken as it is, a word of an uint16 plane holds the codes of windows 2i (low half) and 2i + 1 (high half). Masks then
work on both at once, and bfloat16 operands of the matrix unit have the same layout, so value codes become numbers
without a conversion: their bits are or-ed into the mantissa of 1.0.

Planes of uint32 words are brought into that form by reading even and odd windows apart, planes of uint8 words (four
windows a word) by taking the windows of a block in another order, which `block_order` gives.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from pallas_kernels.packing import Plane, planes
from pallas_kernels.tiered_decode_attention.tpu_tiles import LANES, load_tiles, store_tiles

PAIRS = LANES // 2  # of windows in a sub-block, whose 128 windows stand on the lanes of scores
_BFLOAT16_ONE = 0x3F80
_BFLOAT16_MANTISSA = 7


def word_count(bits: int, window: int) -> int:
    """Words that `stage` makes of a channel."""
    return 2 * -(-window // 8) if bits == 3 else -(-window * bits // 16)


def locate(token: Any, bits: int) -> tuple[Any, Any]:
    """Word of a token, and the bit of each half at which its code stands there; integers or traced integers.

    INT3 codes stand in nibbles, those of even and odd tokens in words of their own.
    """
    if bits == 3:
        return 2 * (token >> 3) + (token & 1), ((token & 7) >> 1) * 4
    per_word = 16 // bits
    return token >> (per_word.bit_length() - 1), (token & (per_word - 1)) * bits


def phases(bits: int, window: int) -> int:
    """2 where a plane is uint8 and the windows of a block are taken in two interleaved halves, else 1."""
    return 2 if any(plane.dtype == np.uint8 for plane in planes(bits, window)) else 1


def pair_rows(sub: Any, count: int) -> tuple[Any, int]:
    """Start and stride of the pairs of windows that sub-block ``sub`` takes, with ``count`` phases."""
    return PAIRS * count * (sub // count) + sub % count, count


def block_order(windows: int, count: int) -> np.ndarray:
    """Window in each lane of a block."""
    order = []
    for sub in range(windows // LANES):
        start, stride = pair_rows(sub, count)
        pairs = start + stride * np.arange(PAIRS)
        order.append((2 * pairs[:, None] + np.arange(2)).reshape(-1))
    return np.concatenate(order)


def stage(
    words: Any, refs: list[Any], held: list[Any], first: int, width: int, *, twice: bool, bits: int, window: int
) -> None:
    """Writes the words of some channels of a block, in the order of lanes.

    Args:
        words: int32 ``[code words, tiles, block pairs, 128]``.
        refs: the planes, ``[block, words*K*2*D]``.
        held: int32 ``[tiles, block, 128]`` for each plane, to read rows with a stride.
        first: first channel within the row of one word.
        width: channels.
        twice: write the channels once more, beside the first time.
        bits: bits of a code.
        window: W.
    """
    layout = planes(bits, window)
    for sub in range(words.shape[2] // PAIRS):
        by_plane = []
        for ref, plane, scratch in zip(refs, layout, held, strict=True):
            row = ref.shape[-1] // plane.words
            made = []
            for word in range(plane.words):
                columns = slice(word * row + first, word * row + first + width)
                made += _halves(ref, scratch, columns, sub, plane, phases(bits, window))
            by_plane.append(made)
        made = by_plane[0] if len(by_plane) == 1 else _nibbles(*by_plane)
        for index, word in enumerate(made):
            word = jnp.concatenate([word, word], axis=1) if twice else word
            store_tiles(words.at[index], word, sub * PAIRS)


def _halves(ref: Any, held: Any, columns: slice, sub: int, plane: Plane, count: int) -> list[Int[Array, "pairs C"]]:
    """One word's channels with 16 bits a window, or two such words where it has 32."""
    start, stride = pair_rows(sub, count)
    width = columns.stop - columns.start
    if plane.dtype == np.uint8:
        base = 2 * LANES * (sub // 2)
        quads = pltpu.bitcast(ref[base : base + 2 * LANES, columns], jnp.int32)
        two = lax.shift_right_logical(quads, 16) if sub % 2 else quads & 0xFFFF
        return [(two | (two << 8)) & 0x00FF00FF]
    if plane.dtype == np.uint16 and count == 1:
        return [pltpu.bitcast(ref[2 * start : 2 * start + LANES, columns], jnp.int32)]
    if plane.dtype == np.uint16:
        if sub % 2 == 0:
            store_tiles(held, pltpu.bitcast(ref[2 * start : 2 * start + 2 * LANES, columns], jnp.int32), 0)
        return [load_tiles(held, pl.ds(sub % 2, PAIRS, stride=2), width)]
    assert count == 1, "no layout has uint8 and uint32 planes"
    store_tiles(held, lax.bitcast_convert_type(ref[2 * start : 2 * start + LANES, columns], jnp.int32), 0)
    even, odd = (load_tiles(held, pl.ds(parity, PAIRS, stride=2), width) for parity in (0, 1))
    return [(even & 0xFFFF) | (odd << 16), lax.shift_right_logical(even, 16) | (odd & -0x10000)]


def _nibbles(twos: list[Array], ones: list[Array]) -> list[Int[Array, "pairs C"]]:
    """INT3: a two-bit and a one-bit plane as codes in nibbles."""
    if len(ones) < len(twos):  # one-bit words hold 16 tokens, two-bit words 8
        ones = [part & 0x00FF00FF for word in ones for part in (word, lax.shift_right_logical(word, 8))]
    made = []
    for two, one in zip(twos, ones, strict=True):
        # bits 76543210 to ..76..54..32..10: each pair of tokens has its nibble
        one = (one | (one << 4)) & 0x0F0F0F0F
        one = (one | (one << 2)) & 0x33333333
        made.append((two & 0x33333333) | ((one << 2) & 0x44444444))
        made.append((lax.shift_right_logical(two, 2) & 0x33333333) | ((one << 1) & 0x44444444))
    return made


def float_codes(word: Int[Array, "pairs C"], bit: Any, bits: int) -> tuple[Float[Array, "pairs C"], ...]:
    """Codes at a bit, times ``2**bit``, of even and of odd windows in float32."""
    mask = ((1 << bits) - 1) << bit
    return (word & mask).astype(jnp.float32), (lax.shift_right_logical(word, 16) & mask).astype(jnp.float32)


def mantissa_codes(word: Int[Array, "pairs C"], bit: Any, bits: int) -> Float[Array, "windows C"]:
    """``1 + code / 2**bits`` of codes at a bit in bfloat16, all windows in order."""
    low = _BFLOAT16_MANTISSA - bits
    if isinstance(bit, int):
        moved = word << low - bit if bit <= low else lax.shift_right_logical(word, bit - low)
    else:
        moved = lax.shift_right_logical(word, bit) << low
    mask = ((1 << bits) - 1) << low
    return pltpu.bitcast((moved & (mask | mask << 16)) | (_BFLOAT16_ONE | _BFLOAT16_ONE << 16), jnp.bfloat16)
