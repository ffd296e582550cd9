# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Grouped min-max quantization (KIVI, arXiv:2402.02750): keys per channel over g consecutive tokens, values per token
over g consecutive channels of a head.

Where g does not divide head_dim, the last group of channels is smaller: no padding enters a minimum.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, UInt16

from pallas_kernels.float_bits import from_bits, to_bits
from qevict_jax.quantizers.code_rows import pack_rows, split_rows, unpack_head
from qevict_jax.quantizers.min_max import encode, scale_of, to_half


class GroupedTokens(NamedTuple):
    """Groups of g tokens as they are stored; ``*n`` are any leading axes, S = N*g tokens, C channel groups per head.

    Attributes:
        codes: rows of `code_rows`, ``[*n, S, K*2*words]`` a plane.
        key_params: ``[*n, N, 2*K*D]`` bits of float16: scales, then lowest keys, of each channel.
        value_params: ``[*n, S, 2*K*C]`` bits of float16: scales, then lowest values, of each channel group.
    """

    codes: tuple[Integer[Array, "*n S _K_2_words"], ...]
    key_params: UInt16[Array, "*n N two_K_D"]
    value_params: UInt16[Array, "*n S two_K_C"]


class GroupedHeads(NamedTuple):
    """`GroupedTokens` of one layer by head (N = B*K), slots last."""

    codes: tuple[Integer[Array, "N 2 _words S"], ...]
    key_params: Float[Array, "N 2 D groups"]
    value_params: Float[Array, "N 2 C S"]


def channel_groups(group: int, head_dim: int) -> int:
    """C, the groups that the channels of a head fall into."""
    return -(-head_dim // group)


def quantize_groups(keys: Float[Array, "*n N g K D"], values: Float[Array, "*n N g K D"], bits: int) -> GroupedTokens:
    """Quantizes whole groups of tokens, computed in float32."""
    keys, values = keys.astype(jnp.float32), values.astype(jnp.float32)
    *lead, count, group, kv_heads, head_dim = keys.shape
    low, high = keys.min(axis=-3), keys.max(axis=-3)
    key_scale, key_low = scale_of(low, high, bits), to_half(low)
    key_codes = encode(keys, key_scale[..., None, :, :], key_low[..., None, :, :], bits)

    parts = [values[..., start : start + group] for start in range(0, head_dim, group)]
    low = jnp.stack([part.min(axis=-1) for part in parts], axis=-1)
    high = jnp.stack([part.max(axis=-1) for part in parts], axis=-1)
    value_scale, value_low = scale_of(low, high, bits), to_half(low)

    def per_channel(x: Array) -> Array:
        return jnp.repeat(x, group, axis=-1)[..., :head_dim]

    value_codes = encode(values, per_channel(value_scale), per_channel(value_low), bits)

    rows = pack_rows(key_codes, value_codes, bits)
    key_params = jnp.stack([key_scale, key_low], axis=-3).reshape(*lead, count, -1)
    value_params = jnp.stack([value_scale, value_low], axis=-3).reshape(*lead, count * group, -1)
    return GroupedTokens(
        codes=tuple(words.reshape(*lead, count * group, -1) for words in rows),
        key_params=to_bits(key_params, "float16"),
        value_params=to_bits(value_params, "float16"),
    )


def split_groups(tokens: GroupedTokens, kv_heads: int) -> GroupedHeads:
    """Takes one layer, ``*n = B``, apart by head."""

    def split(params: UInt16[Array, "B slots _"]) -> Float[Array, "N 2 _ slots"]:
        batch, slots, _ = params.shape
        apart = from_bits(params, "float16").reshape(batch, slots, 2, kv_heads, -1)
        return jnp.transpose(apart, (0, 3, 2, 4, 1)).reshape(batch * kv_heads, 2, -1, slots)

    return GroupedHeads(split_rows(tokens.codes, kv_heads), split(tokens.key_params), split(tokens.value_params))


def decode_group_head(head: GroupedHeads, bits: int, group: int) -> tuple[Float[Array, "D S"], Float[Array, "D S"]]:
    """Keys and values of one head (arrays without the leading N) in float32."""
    head_dim, count = head.key_params.shape[1:]
    codes = unpack_head(tuple(x[0] for x in head.codes), bits, head_dim).astype(jnp.float32)
    scale, low = head.key_params[..., None]
    keys = codes.reshape(head_dim, count, group) * scale + low
    codes = unpack_head(tuple(x[1] for x in head.codes), bits, head_dim).astype(jnp.float32)
    scale, low = jnp.repeat(head.value_params, group, axis=1)[:, :head_dim]
    return keys.reshape(head_dim, -1), codes * scale + low
