# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Causal attention of a prompt by JAX's splash attention, the flash attention kernel for TPU.

It runs once per sequence and KV head with that head's queries, one after the other: keys and values are not repeated,
and the log-sum-exp, which the kernel writes 128 lanes wide, never stands in memory for all heads.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask import MultiHeadMask
from jaxtyping import Array, Float

_LANES = 128
_LONG = 2048  # tokens from which on blocks are 512 wide: padding to their multiple is then at most a quarter
_PARALLEL_BYTES = 16 << 20  # of wide log-sum-exp at a time: short prompts of many heads share a call


def unsupported(dtype: jnp.dtype) -> str | None:
    """Why splash attention does not take a dtype, or None. It takes any D and any number of heads."""
    return None if dtype in (jnp.bfloat16, jnp.float32) else f"splash attention takes no {dtype}"


@partial(jax.jit, static_argnames="interpret")
def causal_attention(
    q: Float[Array, "B S H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K D"],
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "B S H D"], Float[Array, "B S H"]]:
    """`base.causal_attention`, with queries scaled by 1/sqrt(D) before they are rounded to their dtype again."""
    batch, size, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    groups = heads // kv_heads
    block = 512 if size >= _LONG else min(256, _round_up(size, _LANES))
    padded = _round_up(size, block)
    kernel = splash_attention.make_splash_mqa_single_device(
        MultiHeadMask([_BlockCausalMask((padded, padded))] * groups),
        block_sizes=splash_attention.BlockSizes(block_q=block, block_kv=block),
        save_residuals=True,
        interpret=interpret,
    )

    def by_head(x: Float[Array, "B S heads D"], group: int) -> Array:
        x = jnp.pad(x, ((0, 0), (0, padded - size), (0, 0), (0, 0)))
        x = jnp.transpose(x.reshape(batch, padded, kv_heads, group, head_dim), (0, 2, 3, 1, 4))
        return x.reshape(batch * kv_heads, group, padded, head_dim)

    def attend(parts: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        q, k, v = parts
        # here rather than for all heads together, which XLA would keep a second time
        out, (lse,) = kernel((q.astype(jnp.float32) * head_dim**-0.5).astype(q.dtype), k[0], v[0])
        return out.astype(v.dtype), lse

    together = max(1, _PARALLEL_BYTES // (4 * _LANES * padded * groups))
    out, lse = lax.map(
        attend,
        (by_head(q, groups), by_head(k, 1), by_head(v, 1)),
        batch_size=max(n for n in range(1, batch * kv_heads + 1) if n <= together and batch * kv_heads % n == 0),
    )
    out = jnp.transpose(out.reshape(batch, heads, padded, head_dim), (0, 2, 1, 3))
    return out[:, :size], jnp.transpose(lse.reshape(batch, heads, padded), (0, 2, 1))[:, :size]


class _BlockCausalMask(splash_attention.CausalMask):
    """The causal mask, with one element for a block that is all seen or all hidden.

    Splash attention asks every block of the mask whether any and whether all of it is seen, while it traces. Answered
    element by element that is quadratic in S: 2 s for 32K tokens, half a minute for 128K.
    """

    def __getitem__(self, idx: tuple[slice, slice]) -> np.ndarray:
        queries, keys = idx
        if keys.stop <= queries.start + 1 or keys.start >= queries.stop:
            return np.array([[keys.start < queries.stop]])
        return super().__getitem__(idx)


def _round_up(x: int, to: int) -> int:
    return -(-x // to) * to
