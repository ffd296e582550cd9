# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The model as pure functions ``(params, cache, tokens) -> (logits, cache)`` for ``jax.jit`` with the cache donated.

Layers run under `lax.scan` with the whole cache in the carry: handed through as inputs and outputs it would be copied.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.rope import cos_sin, rotate
from qevict_jax.attention import causal_attention
from qevict_jax.models.config import ModelConfig
from qevict_jax.models.rope_frequencies import inverse_frequencies
from qevict_jax.models.token_chunks import over_tokens
from qevict_jax.models.transformer import Block, Transformer
from qevict_jax.policies import Policy, Prompt
from qevict_jax.policies.full import merge_kv
from qevict_jax.windows import KeyTransform


@dataclass(frozen=True)
class Program:
    """The static half of a model: everything of it that is not an array. Hashable, a static argument of ``jax.jit``."""

    config: ModelConfig
    graph: nnx.GraphDef

    @classmethod
    def of(cls, config: ModelConfig, axes: tuple[str, ...] = ()) -> "Program":
        """The program of a configuration, without making any parameter; with mesh axes that of one device's part."""
        module = nnx.eval_shape(lambda: Transformer(config, jnp.dtype("float32"), axes=axes, rngs=nnx.Rngs(0)))
        return cls(config, nnx.graphdef(module))

    def bind(self, params: nnx.State) -> Transformer:
        """The modules around their parameters."""
        return nnx.merge(self.graph, params)

    def transform(self, model: Transformer) -> KeyTransform:
        """RoPE frequencies, key bias and output projection."""
        bias = model.blocks.attn.k.bias
        if bias is not None:
            bias = bias[...].reshape(self.config.layers, self.config.kv_heads, self.config.head_dim)
        return KeyTransform(jnp.asarray(inverse_frequencies(self.config)), bias, model.blocks.attn.o.kernel[...])


def prefill(
    program: Program, params: nnx.State, policy: Policy, tokens: Int[Array, "B S"], length: Int[Array, "B"]
) -> tuple[Float[Array, "B V"], Any]:
    """Reads prompts, padded on the right, into a fresh cache.

    Returns:
        Logits after the last token of each row, and the cache. A row of length 0 is an inactive row.
    """
    model = program.bind(params)
    transform = program.transform(model)
    batch, size = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (batch, size))
    cos, sin = cos_sin(positions, transform.inv_freq)

    def rotated(block: Block, _: Any, x: Array, cos: Array, sin: Array) -> tuple[Array, Array, Array]:
        q, k, v = block.qkv(x)
        return rotate(q, cos, sin).astype(x.dtype), rotate(k, cos, sin).astype(x.dtype), v

    blocks = _Blocks(model)
    heads = program.config.heads, program.config.kv_heads, program.config.kv_heads

    def layer(carry: tuple, index: Array) -> tuple:
        x, cache = carry
        block_at = partial(blocks, index)
        empty = tuple(jnp.zeros((batch, size, count, program.config.head_dim), x.dtype) for count in heads)
        q, k, v = over_tokens(block_at, rotated, empty, x, cos, sin)
        with jax.named_scope("attention"):
            out, lse = causal_attention(q, k, v, policy.plan.config.implementation)
        with jax.named_scope("admit"):
            cache = policy.admit(cache, index, Prompt(q, k, v, lse, length), transform)
        return (over_tokens(block_at, Block.residual, x, out), cache), None

    (x, cache), _ = lax.scan(layer, (model.lookup(tokens), policy.init(batch)), jnp.arange(program.config.layers))
    last = jnp.take_along_axis(x, jnp.maximum(length - 1, 0)[:, None, None], axis=1)[:, 0]
    return model.logits(last), policy.admitted(cache, length)


def step(
    program: Program,
    params: nnx.State,
    policy: Policy,
    cache: Any,
    tokens: Int[Array, "B T"],
    count: Int[Array, "B"],
) -> tuple[Float[Array, "B V"], Any]:
    """Feeds up to ``policy.event_steps`` tokens a row, without a routing event: one for decoding, more for a chat turn.

    Args:
        program: the model's static half.
        params: its parameters.
        policy: the cache policy.
        cache: the cache; donate it.
        tokens: the next tokens of each row, padded on the right.
        count: how many of them count in each row; a row with 0 is inactive: nothing is written and nothing advances.

    Returns:
        Logits after the last counted token of each row, and the cache.
    """
    model, x, cache = _feed(program, params, policy, cache, tokens, count)
    last = jnp.take_along_axis(x, jnp.maximum(count - 1, 0)[:, None, None], axis=1)[:, 0]
    return model.logits(last), cache


def step_logits(
    program: Program,
    params: nnx.State,
    policy: Policy,
    cache: Any,
    tokens: Int[Array, "B T"],
    count: Int[Array, "B"],
) -> tuple[Float[Array, "B T V"], Any]:
    """`step` with the logits after every token."""
    model, x, cache = _feed(program, params, policy, cache, tokens, count)
    return model.logits(x), cache


def _feed(
    program: Program,
    params: nnx.State,
    policy: Policy,
    cache: Any,
    tokens: Int[Array, "B T"],
    count: Int[Array, "B"],
) -> tuple[Transformer, Float[Array, "B T E"], Any]:
    model = program.bind(params)
    transform = program.transform(model)
    offsets = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    valid: Bool[Array, "B T"] = offsets < count[:, None]
    cos, sin = cos_sin(cache.length[:, None] + offsets, transform.inv_freq)

    def layer(carry: tuple, block: Block, index: Array) -> tuple:
        x, cache = carry
        q, k, v = block.qkv(x)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        with jax.named_scope("attention"):
            rows = merge_kv(k, v.astype(jnp.float32))
            cache, out, seen = policy.attend(cache, index, q, rows, valid, transform)
        return (block.residual(x, out.astype(x.dtype)), cache), seen

    (x, cache), seen = _scan_layers(model, layer, (model.lookup(tokens), cache), emits=True)
    return model, x, policy.observe(cache, seen, count)


def route(program: Program, params: nnx.State, policy: Policy, cache: Any) -> Any:
    """The routing event of all layers."""
    with jax.named_scope("route"):
        return policy.route(cache, program.transform(program.bind(params)))


def all_logits(
    program: Program, params: nnx.State, tokens: Int[Array, "B S"], positions: Int[Array, "S"] | None = None
) -> Float[Array, "B S V"]:
    """Logits at every position from a plain causal pass without any cache, for tests and scoring."""
    model = program.bind(params)
    if positions is None:
        positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    cos, sin = cos_sin(jnp.broadcast_to(positions, tokens.shape), program.transform(model).inv_freq)

    def layer(x: Array, block: Block, index: Array) -> Array:
        q, k, v = block.qkv(x)
        out, _ = causal_attention(rotate(q, cos, sin).astype(x.dtype), rotate(k, cos, sin).astype(x.dtype), v)
        return block.residual(x, out)

    return model.logits(_scan_layers(model, layer, model.lookup(tokens)))


class _Blocks:
    """The blocks one by one, for a loop within the loop over layers."""

    def __init__(self, model: Transformer):
        self.graph, self.stacked = nnx.split(model.blocks)

    def __call__(self, index: Int[Array, ""], turn: Int[Array, ""] | None) -> Block:
        """Block ``index``, read anew in each turn of the inner loop, or outside of any."""
        if turn is not None:
            # XLA would take what does not change out of the loop, and keep a layer's weights a second time
            index, _ = lax.optimization_barrier((index, turn))
        return nnx.merge(self.graph, jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, index, 0, False), self.stacked))


def _scan_layers(model: Transformer, layer: Any, carry: Any, emits: bool = False) -> Any:
    """Runs ``layer(carry, block, index)`` over the stacked blocks."""
    graph, stacked = nnx.split(model.blocks)

    def body(carry: Any, xs: tuple) -> tuple:
        index, params = xs
        out = layer(carry, nnx.merge(graph, params), index)
        return out if emits else (out, None)

    count = jax.tree.leaves(stacked)[0].shape[0]
    result = lax.scan(body, carry, (jnp.arange(count, dtype=jnp.int32), stacked))
    return result if emits else result[0]


def abstract_params(config: ModelConfig, dtype: str) -> nnx.State:
    """The parameter tree as shapes and dtypes, for tracing without weights."""
    module = nnx.eval_shape(lambda: Transformer(config, jnp.dtype(dtype), rngs=nnx.Rngs(0)))
    return nnx.state(module)


def to_state(params: dict[str, Any]) -> nnx.State:
    """Parameters of `load_params` as the state that the functions here take."""
    return nnx.State(jax.tree.map(nnx.Param, params, is_leaf=lambda x: isinstance(x, np.ndarray | jax.Array)))
