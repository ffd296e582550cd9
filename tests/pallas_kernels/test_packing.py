# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The bit layout, pinned by hand, and every width and window there and back."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.packing import BITS, WINDOWS, pack, planes, unpack


def test_int2_by_hand():
    """Tokens 3 1 0 2 2 0 1 3 of one channel: token 0 in the lowest two bits."""
    codes = jnp.array([3, 1, 0, 2, 2, 0, 1, 3])[:, None]
    (words,) = pack(codes, 2)
    assert words.dtype == jnp.uint16 and words.shape == (1, 1)
    assert int(words[0, 0]) == 0b11_01_00_10_10_00_01_11


def test_int3_by_hand():
    """The low two bits of each code in one plane, its top bit in another."""
    codes = jnp.array([7, 4, 1, 2, 0, 5, 6, 3])[:, None]
    low, high = pack(codes, 3)
    assert (low.dtype, high.dtype) == (jnp.uint16, jnp.uint8)
    assert int(low[0, 0]) == 0b11_10_01_00_10_01_00_11
    assert int(high[0, 0]) == 0b0110_0011


def test_int4_of_32_tokens_by_hand():
    """Four words of eight tokens each, first tokens in the first word."""
    codes = (jnp.arange(32) % 16)[:, None]
    (words,) = pack(codes, 4)
    assert words.dtype == jnp.uint32
    assert [hex(word) for word in words[:, 0].tolist()] == ["0x76543210", "0xfedcba98", "0x76543210", "0xfedcba98"]


def test_word_sizes():
    """The table of the layout: dtype and words a channel of each plane."""
    found = {
        (bits, window): [(str(plane.dtype), plane.words) for plane in planes(bits, window)]
        for bits in (2, 3, 4)
        for window in WINDOWS
    }
    two = {4: ("uint8", 1), 8: ("uint16", 1), 16: ("uint32", 1), 32: ("uint32", 2)}
    one = {4: ("uint8", 1), 8: ("uint8", 1), 16: ("uint16", 1), 32: ("uint32", 1)}
    four = {4: ("uint16", 1), 8: ("uint32", 1), 16: ("uint32", 2), 32: ("uint32", 4)}
    for window in WINDOWS:
        assert found[2, window] == [two[window]]
        assert found[3, window] == [two[window], one[window]]
        assert found[4, window] == [four[window]]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("window", WINDOWS)
def test_there_and_back(bits, window):
    """Every code at every token, with leading axes, and with the words on another axis."""
    codes = np.random.default_rng(bits * window).integers(0, 2**bits, (3, 2, window, 7), dtype=np.int32)
    codes[0, 0, :, 0] = 2**bits - 1  # all bits set: the sign bit must not leak
    packed = pack(jnp.asarray(codes), bits)
    np.testing.assert_array_equal(unpack(packed, bits, window, axis=2), codes)
    channels_first = tuple(jnp.moveaxis(words, 3, 0) for words in packed)
    back = unpack(channels_first, bits, window, axis=3)
    np.testing.assert_array_equal(back, np.moveaxis(codes, 3, 0))
    for words, plane in zip(packed, planes(bits, window), strict=True):
        assert words.shape == (3, 2, plane.words, 7) and words.dtype == plane.dtype
        assert plane.bytes_per_channel * 8 >= plane.bits * window


@pytest.mark.parametrize(("bits", "window"), [(5, 8), (1, 8), (2, 12), (2, 64)])
def test_other_widths_are_refused(bits, window):
    with pytest.raises(ValueError, match=f"bits={bits}, window={window}"):
        planes(bits, window)
