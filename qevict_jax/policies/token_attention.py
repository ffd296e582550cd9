# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Attention over parts of a cache whose heads may hold different tokens: one softmax over all of them, float32."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Part(NamedTuple):
    """Tokens that lie side by side in a cache.

    Attributes:
        keys: after RoPE, a row per token and KV head, or (``heads`` = 1) rows that belong to one head each.
        values: of the same rows.
        seen: which query of which KV head sees which row; where no query does, the row may hold anything.
        q: queries for these rows, if other than for the rest.
    """

    keys: Float[Array, "B n heads D"]
    values: Float[Array, "B n heads D"]
    seen: Bool[Array, "B T K n"]
    q: Float[Array, "B T H D"] | None = None


def attend(
    q: Float[Array, "B T H D"], parts: Sequence[Part]
) -> tuple[Float[Array, "B T H D"], list[Float[Array, "B T K G n"]]]:
    """Output, and the probabilities of every part; both are 0 for a query that sees nothing."""
    batch, count, heads, head_dim = q.shape
    kv_heads = parts[0].seen.shape[2]
    by_head = (batch, count, kv_heads, heads // kv_heads, head_dim)
    logits = []
    for part in parts:
        rows = (q if part.q is None else part.q).astype(jnp.float32).reshape(by_head) * head_dim**-0.5
        shared = part.keys.shape[2] == 1
        keys = part.keys[:, :, 0] if shared else part.keys
        made = jnp.einsum("btkgd,bnd->btkgn" if shared else "btkgd,bnkd->btkgn", rows, keys)
        logits.append(jnp.where(part.seen[:, :, :, None], made, -jnp.inf))
    peak = jnp.stack([x.max(axis=-1) for x in logits]).max(axis=0)
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)[..., None]
    weights = [jnp.exp(x - peak) for x in logits]
    total = jnp.stack([x.sum(axis=-1) for x in weights]).sum(axis=0)[..., None]
    weights = [x / jnp.where(total > 0, total, 1.0) for x in weights]
    out = jnp.zeros(by_head)
    for part, weight in zip(parts, weights, strict=True):
        used = part.seen.any(axis=(1, 2))[..., None, None]
        values = jnp.where(used, part.values, 0.0)
        if part.values.shape[2] == 1:
            out = out + jnp.einsum("btkgn,bnd->btkgd", weight, values[:, :, 0])
        else:
            out = out + jnp.einsum("btkgn,bnkd->btkgd", weight, values)
    return out.reshape(q.shape), weights
