# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The bit layout of quantized windows, defined once for the library and for every kernel.

The W tokens of one channel sit in the bits of words, so that unpacking is a shift of whole channel vectors. A code of
``bits`` bits is split into planes: INT2 is one 2-bit plane, INT3 a 2-bit and a 1-bit plane, INT4 one 4-bit plane. Token
t of a plane with b bits per code stands in bits ``b*t .. b*t+b-1`` of its words, first word first:

    W = 8, INT2:    one uint16 a channel     t7 t6 t5 t4 t3 t2 t1 t0   (2 bits each, t0 lowest)
    W = 32, INT2:   two uint32 a channel     t15 .. t0 | t31 .. t16
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Integer

BITS = (2, 3, 4)
WINDOWS = (4, 8, 16, 32)

_PLANES = {2: ((2, 0),), 3: ((2, 0), (1, 2)), 4: ((4, 0),)}
_WORD_DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32}


class Plane(NamedTuple):
    """One bit plane: ``bits`` bits of each code from bit ``low`` on, in ``words`` words of ``dtype`` a channel."""

    bits: int
    low: int
    words: int
    dtype: np.dtype

    @property
    def bytes_per_channel(self) -> int:
        """Bytes that this plane takes for one channel of one window."""
        return self.words * self.dtype.itemsize


def planes(bits: int, window: int) -> tuple[Plane, ...]:
    """The planes of a code width, in storage order.

    Raises:
        ValueError: if ``bits`` or ``window`` is not one of `BITS` and `WINDOWS`.
    """
    if bits not in BITS or window not in WINDOWS:
        raise ValueError(f"no bit layout for bits={bits}, window={window}; bits in {BITS}, window in {WINDOWS}")
    made = []
    for plane_bits, low in _PLANES[bits]:
        word_bits = min(32, max(8, plane_bits * window))  # the 1-bit plane at W = 4 leaves half a byte empty
        words = max(1, plane_bits * window // word_bits)
        made.append(Plane(plane_bits, low, words, np.dtype(_WORD_DTYPES[word_bits])))
    return tuple(made)


def pack(codes: Int[Array, "*n W C"], bits: int) -> tuple[Integer[Array, "*n _words C"], ...]:
    """Packs codes in ``0 .. 2**bits - 1``, tokens before channels, into one array of words a plane."""
    *lead, window, channels = codes.shape
    packed = []
    for plane in planes(bits, window):
        per_word = window // plane.words
        part = (codes >> plane.low) & ((1 << plane.bits) - 1)
        part = part.astype(jnp.uint32).reshape(*lead, plane.words, per_word, channels)
        shifts = (jnp.arange(per_word, dtype=jnp.uint32) * plane.bits)[:, None]
        packed.append(jnp.sum(part << shifts, axis=-2, dtype=jnp.uint32).astype(plane.dtype))
    return tuple(packed)


def unpack(packed: tuple[Integer[Array, "..."], ...], bits: int, window: int, axis: int) -> Int[Array, "..."]:
    """Inverse of `pack` for any axis order.

    Args:
        packed: one array a plane, its words on ``axis``.
        bits: bits of a code.
        window: W.
        axis: non-negative position of the words.

    Returns:
        int32 codes with the W tokens on ``axis``.
    """
    codes = None
    for words, plane in zip(packed, planes(bits, window), strict=True):
        per_word = window // plane.words
        # 8- and 16-bit shifts do not legalize on TPU, so widen first; to int32, whose conversion to float is native.
        # An arithmetic shift drags the sign bit in, and the mask takes it away.
        wide = jnp.expand_dims(words.astype(jnp.int32), axis + 1)
        shifts = jnp.arange(per_word, dtype=jnp.int32) * plane.bits
        shifts = shifts.reshape(per_word, *(1,) * (wide.ndim - axis - 2))
        part = ((wide >> shifts) & ((1 << plane.bits) - 1)) << plane.low
        part = part.reshape(*part.shape[:axis], window, *part.shape[axis + 2 :])
        codes = part if codes is None else codes | part
    assert codes is not None
    return codes
