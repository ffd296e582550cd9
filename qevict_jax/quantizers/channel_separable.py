# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""ZipCache's quantizer (arXiv:2405.14256): keys per channel over all tokens of a class, values channel-separable.

Keys of a channel share one scale and offset. Values are divided by ``c = sqrt(max |v|)`` of their channel, then
quantized per slot over the channels of all heads:  ``v' = (code*step + low) * c``.

Tokens come later too. The range of a key channel only ever grows, and its codes are rewritten only when it does; ``c``
stays that of the first tokens, for it is a unit of measure and no bound, so values are written once. The original
decodes and re-quantizes everything whenever tokens come.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Integer, UInt16

from pallas_kernels.float_bits import from_bits, to_bits
from qevict_jax.quantizers.code_rows import pack_rows, split_rows, unpack_head, unpack_rows
from qevict_jax.quantizers.min_max import encode, scale_of, to_half


class SeparableTokens(NamedTuple):
    """Tokens of one class as they are stored; ``*n`` are any leading axes, S slots.

    Attributes:
        codes: rows of `code_rows`, ``[*n, S, K*2*words]`` a plane.
        channels: ``[*n, 3*K*D]`` bits of float16: scale and lowest key of each channel, and c of its values.
        slots: ``[*n, 2*S]`` bits of float16: step of each slot's values, then their lowest.
    """

    codes: tuple[Integer[Array, "*n S _K_2_words"], ...]
    channels: UInt16[Array, "*n three_K_D"]
    slots: UInt16[Array, "*n two_S"]


class SeparableHeads(NamedTuple):
    """`SeparableTokens` of one layer by head (N = B*K), slots last."""

    codes: tuple[Integer[Array, "N 2 _words S"], ...]
    channels: Float[Array, "N 3 D"]
    slots: Float[Array, "N 2 S"]


def add_tokens(
    held: SeparableTokens,
    keys: Float[Array, "B n K D"],
    values: Float[Array, "B n K D"],
    at: Int[Array, "B n"],
    used: Int[Array, "B"],
    bits: int,
) -> SeparableTokens:
    """Puts tokens into free slots of a class; the first ones decide its parameters, later ones widen key ranges.

    Args:
        held: one layer of the class, ``*n = B``; zeros where nothing has been stored yet.
        keys: the new tokens.
        values: as keys.
        at: slot of each; what goes beyond the last slot is dropped and enters no minimum.
        used: slots taken before.
        bits: bits of a code.
    """
    keys, values = keys.astype(jnp.float32), values.astype(jnp.float32)
    batch, size = held.codes[0].shape[:2]
    kv_heads, head_dim = keys.shape[2:]
    rows = jnp.arange(batch)[:, None]
    valid = at < size
    old = _channels(held, kv_heads, head_dim)
    first = ((used == 0) & valid.any(axis=1))[:, None, None, None]
    new, grows = _widened(old, _channels_of(keys, values, valid, bits), first[:, 0], bits)
    scale, low, unit = (x.astype(jnp.float16) for x in (new[:, 0], new[:, 1], new[:, 2]))

    key_codes, value_codes = unpack_rows(held.codes, bits, kv_heads, head_dim)
    again = encode(
        key_codes.astype(jnp.float32) * old[:, None, 0] + old[:, None, 1], scale[:, None], low[:, None], bits
    )
    key_codes = jnp.where(grows[:, None], again, key_codes)
    key_codes = key_codes.at[rows, at].set(encode(keys, scale[:, None], low[:, None], bits), mode="drop")

    scaled = values / unit.astype(jnp.float32)[:, None]
    lowest = scaled.min(axis=(2, 3))
    step, lowest = scale_of(lowest, scaled.max(axis=(2, 3)), bits), to_half(lowest)
    coming = encode(scaled, step[..., None, None], lowest[..., None, None], bits)
    value_codes = value_codes.at[rows, at].set(coming, mode="drop")
    slots = held.slots.reshape(batch, 2, size)
    slots = slots.at[rows, :, at].set(to_bits(jnp.stack([step, lowest], axis=-1), "float16"), mode="drop")
    return SeparableTokens(
        codes=pack_rows(key_codes, value_codes, bits),
        channels=to_bits(jnp.stack([scale, low, unit], axis=1), "float16").reshape(batch, -1),
        slots=slots.reshape(batch, -1),
    )


def split_tokens(tokens: SeparableTokens, kv_heads: int) -> SeparableHeads:
    """Takes one layer, ``*n = B``, apart by head."""
    batch, size = tokens.codes[0].shape[:2]
    channels = from_bits(tokens.channels, "float16").reshape(batch, 3, kv_heads, -1)
    slots = from_bits(tokens.slots, "float16").reshape(batch, 1, 2, size)
    return SeparableHeads(
        split_rows(tokens.codes, kv_heads),
        jnp.swapaxes(channels, 1, 2).reshape(batch * kv_heads, 3, -1),
        jnp.broadcast_to(slots, (batch, kv_heads, 2, size)).reshape(-1, 2, size),
    )


def decode_separable_head(head: SeparableHeads, bits: int) -> tuple[Float[Array, "D S"], Float[Array, "D S"]]:
    """Keys and values of one head (arrays without the leading N) in float32."""
    scale, low, unit = head.channels[..., None]
    step, lowest = head.slots
    key_codes, value_codes = (
        unpack_head(tuple(x[part] for x in head.codes), bits, scale.shape[0]).astype(jnp.float32) for part in (0, 1)
    )
    return key_codes * scale + low, (value_codes * step + lowest) * unit


def _channels(tokens: SeparableTokens, kv_heads: int, head_dim: int) -> Float[Array, "B 3 K D"]:
    return from_bits(tokens.channels, "float16").reshape(-1, 3, kv_heads, head_dim)


def _channels_of(
    keys: Float[Array, "B n K D"], values: Float[Array, "B n K D"], valid: Bool[Array, "B n"], bits: int
) -> Float[Array, "B 3 K D"]:
    """Parameters of these tokens alone, as they are stored; not finite where none is valid."""
    valid = valid[..., None, None]
    low = jnp.where(valid, keys, jnp.inf).min(axis=1)
    high = jnp.where(valid, keys, -jnp.inf).max(axis=1)
    unit = to_half(jnp.sqrt(jnp.where(valid, jnp.abs(values), 0.0).max(axis=1)))
    unit = jnp.where(unit == 0, jnp.ones_like(unit), unit)
    return jnp.stack([scale_of(low, high, bits), to_half(low), unit], axis=1).astype(jnp.float32)


def _widened(
    old: Float[Array, "B 3 K D"], new: Float[Array, "B 3 K D"], first: Bool[Array, "B 1 1"], bits: int
) -> tuple[Float[Array, "B 3 K D"], Bool[Array, "B K D"]]:
    """Parameters for old and new tokens together, and the channels whose old codes must be rewritten."""
    top = (1 << bits) - 1
    old_high, new_high = (x[:, 1] + top * x[:, 0] for x in (old, new))
    grows = ~first & ((new[:, 1] < old[:, 1]) | (new_high > old_high))
    low = jnp.minimum(old[:, 1], new[:, 1])
    scale = scale_of(low, jnp.maximum(old_high, new_high), bits).astype(jnp.float32)
    wide = jnp.stack([scale, low, old[:, 2]], axis=1)
    kept = jnp.where(grows[:, None], wide, old)
    return jnp.where(first[:, None], new, kept), grows
