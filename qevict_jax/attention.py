# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Attention: causal over a prompt, dense over a full cache, tiered over a compressed one. Softmax in float32."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from pallas_kernels import head_by_head
from pallas_kernels.causal_attention.api import causal_attention as causal_attention
from pallas_kernels.float_bits import from_bits
from pallas_kernels.layer_slice import layer_slice
from pallas_kernels.prefill_window_mass.api import prefill_window_mass
from pallas_kernels.tiered_decode_attention.api import Mass, Tiers, tiered_decode_attention
from qevict_jax.cache import PerWindow, TieredCache, local_positions
from qevict_jax.windows import KeyTransform


def start_mass(
    q: Float[Array, "B S H D"],
    k: Float[Array, "B S K D"],
    lse: Float[Array, "B S H"],
    length: Int[Array, "B"],
    *,
    prefill_scores: str,
    last_queries: int | None,
    window: int,
    sink: int,
    implementation: str = "auto",
) -> Float[Array, "B windows"]:
    """Start mass of a prompt's windows: from all queries, their mean, or the last N (`CacheConfig.prefill_scores`)."""
    batch, size = q.shape[:2]
    positions = jnp.arange(size, dtype=jnp.int32)
    weight = (positions < length[:, None]).astype(jnp.float32)
    if prefill_scores == "mean":
        weight = weight / jnp.maximum(1, length[:, None] - positions).astype(jnp.float32)  # queries that see the key
    q_positions = jnp.broadcast_to(positions, (batch, size))
    if last_queries is not None and last_queries < size:
        q_positions = length[:, None] - last_queries + jnp.arange(last_queries, dtype=jnp.int32)
        index = jnp.clip(q_positions, 0, size - 1)[..., None]
        q = jnp.take_along_axis(q, index[..., None], axis=1)
        lse = jnp.take_along_axis(lse, index, axis=1)
    valid = (q_positions >= 0) & (q_positions < length[:, None])
    return prefill_window_mass(
        q, k, lse, q_positions, valid, weight, window=window, sink=sink, implementation=implementation
    )


def dense_attention(
    q: Float[Array, "B T H D"],
    tokens: Shaped[Array, "L B S K_2_D"],
    layer: Int[Array, ""],
    q_positions: Int[Array, "B T"],
    kv_dtype: str,
) -> Float[Array, "B T H D"]:
    """Attention over a full cache: each query sees positions up to its own. Float32."""
    # decided where the program is lowered, as everywhere: `pallas_kernels.implementation`
    forms = {"cpu": dense_head_by_head, "default": dense_at_once}
    forms = {platform: partial(form, kv_dtype=kv_dtype) for platform, form in forms.items()}
    return lax.platform_dependent(q, tokens, layer, q_positions, **forms)


def dense_at_once(
    q: Float[Array, "B T H D"],
    tokens: Shaped[Array, "L B S K_2_D"],
    layer: Int[Array, ""],
    q_positions: Int[Array, "B T"],
    *,
    kv_dtype: str,
) -> Float[Array, "B T H D"]:
    """`dense_attention` for accelerators: one product of everything."""
    weights, values = dense_weights(q, tokens, layer, q_positions, kv_dtype)
    return jnp.einsum("bktgs,bskd->btkgd", weights, values).reshape(q.shape)


def dense_head_by_head(
    q: Float[Array, "B T H D"],
    tokens: Shaped[Array, "L B S K_2_D"],
    layer: Int[Array, ""],
    q_positions: Int[Array, "B T"],
    *,
    kv_dtype: str,
) -> Float[Array, "B T H D"]:
    """`dense_attention` for a CPU: a third of the time and less memory (LOG.md)."""
    _, count, heads, head_dim = q.shape
    kv_heads = tokens.shape[-1] // (2 * head_dim)
    rows = head_by_head.by_kv_head(q, kv_heads)
    seen = jnp.arange(tokens.shape[2]) <= q_positions[..., None]
    seen = jnp.repeat(seen, heads // kv_heads, axis=1)  # [B, T*G, S]
    logits = jnp.where(seen[:, None], head_by_head.scores(rows, tokens, layer, kv_dtype), -jnp.inf)
    out = head_by_head.mix(jax.nn.softmax(logits, axis=-1), seen.any(axis=1), tokens, layer, kv_dtype)
    return head_by_head.by_query(out, count)


def dense_weights(
    q: Float[Array, "B T H D"],
    tokens: Shaped[Array, "L B S K_2_D"],
    layer: Int[Array, ""],
    q_positions: Int[Array, "B T"],
    kv_dtype: str,
) -> tuple[Float[Array, "B K T G S"], Float[Array, "B S K D"]]:
    """Attention probabilities over a full cache, and the values that they weigh; float32."""
    batch, count, heads, head_dim = q.shape
    kv = layer_slice(tokens, layer)
    kv_heads = kv.shape[-1] // (2 * head_dim)
    kv = from_bits(kv, kv_dtype).reshape(batch, -1, kv_heads, 2, head_dim)
    rows = q.astype(jnp.float32).reshape(batch, count, kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
    logits = jnp.einsum("btkgd,bskd->bktgs", rows, kv[..., 0, :])
    seen = jnp.arange(kv.shape[1]) <= q_positions[..., None]
    logits = jnp.where(seen[:, None, :, None], logits, -jnp.inf)
    weights = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True), kv[..., 1, :]


def tiered_attention(
    cache: TieredCache,
    layer: Int[Array, ""],
    q: Float[Array, "B T H D"],
    q_positions: Int[Array, "B T"],
    q_valid: Bool[Array, "B T"],
    transform: KeyTransform,
    implementation: str = "auto",
) -> tuple[Float[Array, "B T H D"], PerWindow]:
    """Attention over the tiers of one layer, the new tokens already in the ring, and the mass of every window."""
    layout = cache.layout

    def here(stack: Array | None) -> Array | None:
        return None if stack is None else lax.dynamic_index_in_dim(stack, layer, axis=0, keepdims=False)

    full_window, code_window, dormant = here(cache.full_window), here(cache.code_window), here(cache.dormant)
    starts = None
    if code_window is not None:
        attended = code_window >= 0 if dormant is None else (code_window >= 0) & ~dormant
        starts = jnp.where(attended, layout.sink + code_window * layout.window, -1)
    tiers = Tiers(
        local=cache.local,
        local_positions=local_positions(layout, cache.aged),
        full=cache.full,
        full_valid=None if full_window is None else full_window >= 0,
        quantized=cache.codes,
        quantized_starts=starts,
    )
    out, mass = tiered_decode_attention(
        q,
        q_positions,
        q_valid,
        tiers,
        layer,
        transform.inv_freq,
        here(transform.bias),
        kv_heads=layout.shape.kv_heads,
        window=layout.window,
        ring=layout.ring,
        bits=layout.bits,
        kv_dtype=layout.shape.dtype,
        implementation=implementation,
    )
    assert isinstance(mass, Mass)
    return out, PerWindow(mass.ring, mass.full, mass.quantized)
