# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""How far a value moves the residual stream: the L1 norm of its output projection (CriticalKV, arXiv:2502.03805)."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_BLOCK_BYTES = 64 << 20  # of float32 projections at a time


def output_norms(values: Float[Array, "B n K D"], kernel: Float[Array, "H_D E"]) -> Float[Array, "B n K"]:
    """``mean over g of ||v_k Wo_(k,g)||_1`` of every token and KV head k, g its query heads; float32.

    Args:
        values: values of tokens.
        kernel: output projection of the layer, rows of one head after the other.
    """
    batch, count, kv_heads, head_dim = values.shape
    by_head = kernel.reshape(kv_heads, -1, head_dim, kernel.shape[-1]).astype(jnp.float32)
    groups, width = by_head.shape[1], by_head.shape[-1]
    rows = jnp.moveaxis(values.astype(jnp.float32), 2, 0).reshape(kv_heads, batch * count, head_dim)
    block = max(1, min(batch * count, _BLOCK_BYTES // (4 * groups * width)))
    rows = jnp.pad(rows, ((0, 0), (0, -batch * count % block), (0, 0))).reshape(kv_heads, -1, block, head_dim)

    def one_head(head: tuple) -> Float[Array, "n"]:
        rows, weights = head

        def one_block(part: Float[Array, "b D"]) -> Float[Array, "b"]:
            return jnp.abs(jnp.einsum("nd,gde->nge", part, weights)).sum(axis=-1).mean(axis=-1)

        return lax.map(one_block, rows).reshape(-1)

    norms = lax.map(one_head, (rows, by_head))[:, : batch * count]
    return jnp.moveaxis(norms.reshape(kv_heads, batch, count), 0, -1)
