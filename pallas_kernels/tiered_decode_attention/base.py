# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Decode attention over a tiered cache in plain XLA and float32: the meaning that every kernel must match.

a = softmax(q K^T / sqrt(D)) over sinks, ring, full windows and dequantized windows together
out = a V,   mass(w) = mean over H of the sum of a over the tokens of w and the query tokens     (paper eq. 1)
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels import head_by_head
from pallas_kernels.float_bits import from_bits
from pallas_kernels.layer_slice import layer_slice
from pallas_kernels.quantized_windows import (
    HeadWindows,
    QuantizedWindows,
    decode_keys,
    decode_value_codes,
    split_heads,
)


class Tiers(NamedTuple):
    """What one layer attends to: the stacks of all layers, and what is valid in this layer's slots.

    Attributes:
        local: ``[L, B, rows, K*2*D]``, ring slots first, then sinks; a row is key then value of each head. Keys after
            RoPE.
        local_positions: ``[B, rows]`` int32, position of the token in each row; a query sees positions up to its own.
        full: ``[L, B, F, W, K*2*D]`` like local, or None.
        full_valid: ``[B, F]``.
        quantized: windows ``[L, B, Q, ...]``, or None. Keys before RoPE and bias.
        quantized_starts: ``[B, Q]`` int32, position of a window's first token, -1 where the slot is not attended.
    """

    local: Shaped[Array, "L B rows K_2_D"]
    local_positions: Int[Array, "B rows"]
    full: Shaped[Array, "L B F W K_2_D"] | None = None
    full_valid: Bool[Array, "B F"] | None = None
    quantized: QuantizedWindows | None = None
    quantized_starts: Int[Array, "B Q"] | None = None


class Mass(NamedTuple):
    """Attention mass, mean over heads and summed over query tokens; all together the number of valid query tokens."""

    sink: Float[Array, "B"]
    ring: Float[Array, "B windows"]
    full: Float[Array, "B F"] | None
    quantized: Float[Array, "B Q"] | None


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
    serial: bool = False,
) -> tuple[Float[Array, "B T H D"], Mass]:
    """Attention of T query tokens over all tiers.

    Args:
        q: queries after RoPE.
        q_positions: position of each query token; it sees local tokens at positions up to its own.
        q_valid: padding query tokens give no mass; their output is meaningless.
        tiers: the cache; slots that are not valid may hold anything, NaN included.
        layer: index into the stacks.
        inv_freq: RoPE frequencies, scaling applied.
        key_bias: bias of the key projection, None if the model has none.
        kv_heads: K.
        window: W.
        ring: R, the first rows of ``local``.
        bits: bits of a code.
        kv_dtype: dtype of local and full; 16-bit floats are stored as bits.
        serial: decode one head at a time. The same numbers with less memory; the faster way on a CPU, where the
            alternative is one loop too wide for the vectorizer (LOG.md, 2026-11-29).

    Returns:
        Output in float32, zeros for a query that sees nothing, and the mass per window.
    """
    batch, tokens, heads, _ = q.shape
    groups = heads // kv_heads
    rows = head_by_head.by_kv_head(q, kv_heads)

    local_scores, local_mix = _products(tiers.local, layer, kv_heads, kv_dtype, serial)
    # a padding query may stand where nothing has been written yet
    seen = (tiers.local_positions[:, None, :] <= q_positions[:, :, None]) & q_valid[:, :, None]
    seen = jnp.repeat(seen, groups, axis=1)[:, None]  # [B, 1, T*G, rows]
    logits = [jnp.where(seen, local_scores(rows), -jnp.inf)]

    full_mix = valid = None
    if tiers.full is not None:
        assert tiers.full_valid is not None
        full_scores, full_mix = _products(tiers.full, layer, kv_heads, kv_dtype, serial)
        valid = jnp.repeat(tiers.full_valid, window, axis=1)
        logits.append(jnp.where(valid[:, None, None, :], full_scores(rows), -jnp.inf))

    windows = None
    if tiers.quantized is not None:
        assert tiers.quantized_starts is not None
        windows = split_heads(
            jax.tree.map(lambda x: layer_slice(x, layer), tiers.quantized),
            kv_heads=kv_heads,
            bits=bits,
            window=window,
            key_bias=key_bias,
        )
        attended = tiers.quantized_starts >= 0
        windows = _clean(windows, jnp.repeat(attended, kv_heads, axis=0)[:, None, :])
        scores = _quantized_scores(rows, windows, tiers.quantized_starts, inv_freq, bits, window, serial)
        logits.append(jnp.where(jnp.tile(attended, window)[:, None, None, :], scores, -jnp.inf))

    weights = _softmax(logits)
    out = local_mix(weights[0], seen.any(axis=(1, 2)))
    if full_mix is not None:
        out += full_mix(weights[1], valid)
    if windows is not None:
        out += _quantized_mix(weights[-1], windows, bits, window, serial)
    out = head_by_head.by_query(out, tokens)

    received = [_received(w, q_valid, groups) for w in weights]
    return out, Mass(
        sink=received[0][:, ring:].sum(axis=-1),
        ring=received[0][:, :ring].reshape(batch, -1, window).sum(axis=-1),
        full=None if tiers.full is None else received[1].reshape(batch, -1, window).sum(axis=-1),
        quantized=None if windows is None else received[-1].reshape(batch, window, -1).sum(axis=1),
    )


def _layer(stack: Array, layer: Int[Array, ""]) -> Array:
    return lax.dynamic_index_in_dim(stack, layer, axis=0, keepdims=False)


def _heads_first(tokens: Shaped[Array, "B *s K_2_D"], kv_heads: int, kv_dtype: str) -> tuple[Array, Array]:
    """Keys and values ``[B, K, S, D]`` in float32 from rows of tokens."""
    apart = tokens.reshape(tokens.shape[0], -1, kv_heads, 2, tokens.shape[-1] // (2 * kv_heads))
    apart = jnp.transpose(from_bits(apart, kv_dtype), (3, 0, 2, 1, 4))
    return apart[0], apart[1]


def _products(
    stack: Shaped[Array, "L B *s K_2_D"], layer: Int[Array, ""], kv_heads: int, kv_dtype: str, serial: bool
) -> tuple[Callable, Callable]:
    """Of rows ``[B, K, TG, D]`` with keys, and of weights ``[B, K, TG, S]`` with the values of tokens ``[B, S]``."""
    if serial:
        where = {"stack": stack, "layer": layer, "kv_dtype": kv_dtype}
        return partial(head_by_head.scores, **where), partial(head_by_head.mix, **where)
    keys, values = _heads_first(layer_slice(stack, layer), kv_heads, kv_dtype)

    def scores(rows: Float[Array, "B K TG D"]) -> Float[Array, "B K TG S"]:
        return jnp.einsum("bkgd,bksd->bkgs", rows, keys)

    def mix(weights: Float[Array, "B K TG S"], seen: Bool[Array, "B S"]) -> Float[Array, "B K TG D"]:
        # a weight of zero does not stop a NaN
        return jnp.einsum("bkgs,bksd->bkgd", weights, jnp.where(seen[:, None, :, None], values, 0.0))

    return scores, mix


def _softmax(logits: list[Float[Array, "B K TG _"]]) -> list[Float[Array, "B K TG _"]]:
    """Softmax over several arrays as if they were one; all zeros where everything is masked."""
    peak = jnp.max(jnp.stack([x.max(axis=-1) for x in logits]), axis=0)[..., None]
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
    exps = [jnp.exp(x - peak) for x in logits]
    total = jnp.sum(jnp.stack([x.sum(axis=-1) for x in exps]), axis=0)[..., None]
    scale = jnp.where(total > 0, 1.0 / jnp.where(total > 0, total, 1.0), 0.0)
    return [x * scale for x in exps]


def _received(weights: Float[Array, "B K TG S"], q_valid: Bool[Array, "B T"], groups: int) -> Float[Array, "B S"]:
    """Mass of every token: the sum over valid query tokens of the mean over heads."""
    batch, kv_heads, rows, length = weights.shape
    by_token = weights.reshape(batch, kv_heads, rows // groups, groups, length).sum(axis=(1, 3))
    return jnp.einsum("bts,bt->bs", by_token, q_valid.astype(jnp.float32)) / (kv_heads * groups)


def _clean(windows: HeadWindows, attended: Bool[Array, "N 1 Q"]) -> HeadWindows:
    """Zero parameters where a slot is not attended, so that what lies there cannot leak; codes are always finite."""

    def clean(x: Array) -> Array:
        return jnp.where(attended, x, 0.0)

    return windows._replace(
        key_scale=jnp.where(attended[:, None], windows.key_scale, 0.0),
        key_offset=jnp.where(attended[:, None], windows.key_offset, 0.0),
        value_scale=clean(windows.value_scale),
        value_offset=clean(windows.value_offset),
    )


def _each(function: Callable, items: Any, serial: bool) -> Any:
    return lax.map(function, items) if serial else jax.vmap(function)(items)


def _quantized_scores(
    rows: Float[Array, "B K TG D"],
    windows: HeadWindows,
    starts: Int[Array, "B Q"],
    inv_freq: Float[Array, "halfD"],
    bits: int,
    window: int,
    serial: bool,
) -> Float[Array, "B K TG WQ"]:
    batch, kv_heads, count, head_dim = rows.shape
    half = head_dim // 2
    # sin and cos of the window starts only; the W offsets within a window by the addition theorem
    start_angle = inv_freq[:, None] * starts[:, None, :].astype(jnp.float32)
    step_angle = inv_freq[:, None, None] * jnp.arange(window, dtype=jnp.float32)[:, None]
    cos_start, sin_start = jnp.cos(start_angle)[:, :, None], jnp.sin(start_angle)[:, :, None]
    cos_step, sin_step = jnp.cos(step_angle), jnp.sin(step_angle)
    cos = cos_start * cos_step - sin_start * sin_step  # [B, D/2, W, Q]
    sin = sin_start * cos_step + cos_start * sin_step

    def score(head: tuple) -> Float[Array, "TG WQ"]:
        row, queries, codes, scale, offset = head
        # a loop of its own, so that XLA:CPU does not fuse unpacking into the product: that loop would not vectorize
        low, high = _each(
            lambda half: decode_keys(half[0], half[1], half[2], bits, window), (codes, scale, offset), serial
        )
        c, s = _layer(cos, row), _layer(sin, row)
        turned_low = (low * c - high * s).reshape(half, -1)
        turned_high = (high * c + low * s).reshape(half, -1)
        return queries[0] @ turned_low + queries[1] @ turned_high

    queries = rows.reshape(batch * kv_heads, count, 2, half)
    row_of_head = jnp.arange(batch * kv_heads) // kv_heads
    heads = (row_of_head, jnp.swapaxes(queries, 1, 2), windows.key_codes, windows.key_scale, windows.key_offset)
    return _each(score, heads, serial).reshape(batch, kv_heads, count, -1)


def _quantized_mix(
    weights: Float[Array, "B K TG WQ"], windows: HeadWindows, bits: int, window: int, serial: bool
) -> Float[Array, "B K TG D"]:
    batch, kv_heads, count, length = weights.shape

    def mix(head: tuple) -> Float[Array, "TG D"]:
        weights, codes, scale, offset = head
        values = decode_value_codes(codes, bits, window).reshape(length, -1)
        constant = jnp.sum(weights * offset.reshape(length), axis=-1, keepdims=True)
        return (weights * scale.reshape(length)) @ values + constant

    heads = (
        weights.reshape(batch * kv_heads, count, length),
        windows.value_codes,
        windows.value_scale,
        windows.value_offset,
    )
    return _each(mix, heads, serial).reshape(batch, kv_heads, count, -1)
