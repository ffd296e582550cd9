# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The decoder that Llama, Qwen2.5 and Mistral share, as Flax modules with the layers stacked.

The modules hold parameters and the arithmetic of one layer; how keys and values are kept is the caller's business, who
runs the layers under `lax.scan` (`steps`). Attribute names are the paths of the parameter tree that `load_params`
returns.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.layer_slice import row_major
from qevict_jax.models.config import ModelConfig


class RMSNorm(nnx.Module):
    """Root-mean-square norm in float32, ``x / sqrt(mean(x^2) + eps) * scale`` (arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float, dtype: jnp.dtype):
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.eps = eps

    def __call__(self, x: Float[Array, "*n E"]) -> Float[Array, "*n E"]:
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (normed * self.scale[...].astype(jnp.float32)).astype(x.dtype)


class Projection(nnx.Module):
    """``x @ kernel + bias``, kernel ``[in, out]``.

    With ``sum_over``, mesh axes that split ``in``, the products of all devices are added up; in float32, so that the
    result is rounded once, as on one device. Such a projection has no bias.
    """

    def __init__(
        self,
        width_in: int,
        width_out: int,
        dtype: jnp.dtype,
        *,
        bias: bool = False,
        sum_over: tuple[str, ...] = (),
        rngs: nnx.Rngs,
    ):
        init = nnx.initializers.normal(width_in**-0.5)
        self.kernel = nnx.Param(init(rngs.params(), (width_in, width_out), dtype))
        self.bias = nnx.Param(jnp.zeros((width_out,), dtype)) if bias else None
        self.sum_over = sum_over

    def __call__(self, x: Float[Array, "*n in"]) -> Float[Array, "*n out"]:
        if self.sum_over:
            part = jnp.matmul(x, self.kernel[...], preferred_element_type=jnp.float32)
            return lax.psum(part, self.sum_over).astype(x.dtype)
        out = x @ self.kernel[...]
        return out if self.bias is None else out + self.bias[...]


class Attention(nnx.Module):
    """Projections of grouped-query attention."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, *, axes: tuple[str, ...] = (), rngs: nnx.Rngs):
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q = Projection(config.hidden, queries, dtype, bias=config.qkv_bias, rngs=rngs)
        self.k = Projection(config.hidden, keys, dtype, bias=config.qkv_bias, rngs=rngs)
        self.v = Projection(config.hidden, keys, dtype, bias=config.qkv_bias, rngs=rngs)
        self.o = Projection(queries, config.hidden, dtype, sum_over=axes, rngs=rngs)
        self.head_dim = config.head_dim

    def qkv(
        self, x: Float[Array, "B T E"]
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B T K D"], Float[Array, "B T K D"]]:
        """Queries, keys and values, before RoPE."""
        # the heads' favourite layout would go back through the product and transpose the stacked kernels (LOG.md)
        q, k, v = (row_major(p(x)).reshape(*x.shape[:-1], -1, self.head_dim) for p in (self.q, self.k, self.v))
        return q, k, v

    def out(self, heads: Float[Array, "B T H D"]) -> Float[Array, "B T E"]:
        """Back to the residual stream."""
        return self.o(heads.reshape(*heads.shape[:-2], -1))


class MLP(nnx.Module):
    """Gated MLP, ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, *, axes: tuple[str, ...] = (), rngs: nnx.Rngs):
        self.gate = Projection(config.hidden, config.mlp, dtype, rngs=rngs)
        self.up = Projection(config.hidden, config.mlp, dtype, rngs=rngs)
        self.down = Projection(config.mlp, config.hidden, dtype, sum_over=axes, rngs=rngs)

    def __call__(self, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class Block(nnx.Module):
    """One decoder layer."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, *, axes: tuple[str, ...] = (), rngs: nnx.Rngs):
        self.attn_norm = RMSNorm(config.hidden, config.rms_eps, dtype)
        self.attn = Attention(config, dtype, axes=axes, rngs=rngs)
        self.mlp_norm = RMSNorm(config.hidden, config.rms_eps, dtype)
        self.mlp = MLP(config, dtype, axes=axes, rngs=rngs)

    def qkv(
        self, x: Float[Array, "B T E"]
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B T K D"], Float[Array, "B T K D"]]:
        """Queries, keys and values of the residual stream, before RoPE."""
        return self.attn.qkv(self.attn_norm(x))

    def residual(self, x: Float[Array, "B T E"], heads: Float[Array, "B T H D"]) -> Float[Array, "B T E"]:
        """The residual stream behind the layer, from that before it and the output of its attention."""
        x = x + self.attn.out(heads)
        return x + self.mlp(self.mlp_norm(x))


class Embedding(nnx.Module):
    """Token embedding ``[V, E]``."""

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, *, rngs: nnx.Rngs):
        self.weight = nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), (config.vocab, config.hidden), dtype))


class Transformer(nnx.Module):
    """Embedding, L stacked blocks, final norm, output projection (the embedding itself where tied).

    With ``axes``, mesh axes, this is one device's part of a model (`partition`), to be called under `jax.shard_map`.
    """

    def __init__(self, config: ModelConfig, dtype: jnp.dtype, *, axes: tuple[str, ...] = (), rngs: nnx.Rngs):
        self.embed = Embedding(config, dtype, rngs=rngs)

        @nnx.split_rngs(splits=config.layers)
        @nnx.vmap(axis_size=config.layers)
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(config, dtype, axes=axes, rngs=rngs)

        self.blocks = stack(rngs)
        self.final_norm = RMSNorm(config.hidden, config.rms_eps, dtype)
        tied = config.tie_embeddings
        self.lm_head = None if tied else Projection(config.hidden, config.vocab, dtype, rngs=rngs)
        self.axes, self.vocab = axes, config.vocab

    def lookup(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        """Embeds token ids."""
        weight = self.embed.weight[...]
        if not self.axes:
            return weight[tokens]
        here = tokens - lax.axis_index(self.axes) * weight.shape[0]
        mine = (here >= 0) & (here < weight.shape[0])
        # one device has the row and the others give zeros, so the sum is exact
        rows = jnp.where(mine[..., None], weight[jnp.where(mine, here, 0)], 0)
        return lax.psum(rows, self.axes)

    def logits(self, x: Float[Array, "*n E"]) -> Float[Array, "*n V"]:
        """Next-token logits in float32."""
        x = self.final_norm(x)
        if self.lm_head is not None:
            logits = jnp.einsum("...e,ev->...v", x, self.lm_head.kernel[...], preferred_element_type=jnp.float32)
        else:
            logits = jnp.einsum("...e,ve->...v", x, self.embed.weight[...], preferred_element_type=jnp.float32)
        if not self.axes:
            return logits
        return lax.all_gather(logits, self.axes, axis=logits.ndim - 1, tiled=True)[..., : self.vocab]
