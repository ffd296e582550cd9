# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Squared gradients of the loss with respect to keys and values: how much an error in each of them matters.

The diagonal of the Fisher information, as KVQuant weighs the numbers that its codebooks are fitted to
(arXiv:2401.18079, section 3.4). Layers are computed again in the backward pass, so that the activations of one are
held.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.causal_attention.api import causal_attention
from pallas_kernels.rope import cos_sin, rotate
from qevict_jax.models.steps import Program


@partial(jax.jit, static_argnames="program")
def squared_gradients(
    program: Program, params: nnx.State, tokens: Int[Array, "1 S"]
) -> tuple[Float[Array, "L S K D"], Float[Array, "L S K D"], Float[Array, "L S K D"], Float[Array, "L S K D"]]:
    """Keys (before bias and RoPE) and values of a text, and the squared gradient of its mean loss for each of them."""
    config = program.config
    still = jnp.zeros((2, config.layers, tokens.shape[1], config.kv_heads, config.head_dim))
    gradient, (keys, values) = jax.grad(partial(_loss, program, params, tokens), has_aux=True)(still)
    squares = jnp.square(gradient)
    return keys, values, squares[0], squares[1]


def _loss(
    program: Program, params: nnx.State, tokens: Int[Array, "1 S"], moved: Float[Array, "2 L S K D"]
) -> tuple[Float[Array, ""], tuple[Float[Array, "L S K D"], Float[Array, "L S K D"]]]:
    """Mean next-token loss if keys and values were moved by so much, and what they are when they are not."""
    model = program.bind(params)
    transform = program.transform(model)
    cos, sin = cos_sin(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], transform.inv_freq)
    graph, stacked = nnx.split(model.blocks)
    bias = jnp.zeros((program.config.layers, 1, 1)) if transform.bias is None else transform.bias.astype(jnp.float32)

    @jax.checkpoint
    def layer(x: Float[Array, "1 S E"], xs: tuple) -> tuple:
        leaves, bias, key_move, value_move = xs
        block = nnx.merge(graph, leaves)
        q, k, v = block.qkv(x)
        seen = k[0].astype(jnp.float32) - bias, v[0].astype(jnp.float32)
        k, v = k + key_move[None].astype(k.dtype), v + value_move[None].astype(v.dtype)
        q, k = rotate(q, cos, sin).astype(x.dtype), rotate(k, cos, sin).astype(x.dtype)
        out, _ = causal_attention(q, k, v, implementation="xla")  # no kernel has a backward pass for its log-sum-exp
        return block.residual(x, out), seen

    x, seen = lax.scan(layer, model.lookup(tokens), (stacked, bias, *moved))
    log_probs = jax.nn.log_softmax(model.logits(x[:, :-1]))
    return -jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1).mean(), seen
