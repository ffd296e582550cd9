# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Known tokens fed through a cache, with the distribution after each of them.

Tokens go in chunks of W, then one routing event: what W decode steps and an event do, W times cheaper to run, since the
tokens of a chunk share one pass over weights and codes. A test compares it with single steps.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from qevict_jax.evaluation.prompt_record import PromptRecord, admit_record, recorder_for
from qevict_jax.models.steps import Program, prefill, step_logits
from qevict_jax.policies import Policy


@partial(jax.jit, static_argnames=("program", "dtype"))
def record_prompt(program: Program, params: nnx.State, tokens: Int[Array, "B S"], dtype: str) -> PromptRecord:
    """Reads prompts of one length; the record is in ``dtype``, that of the parameters."""
    batch, size = tokens.shape
    recorder = recorder_for(program, dtype, size)
    return prefill(program, params, recorder, tokens, jnp.full((batch,), size, jnp.int32))[1]


@partial(jax.jit, static_argnames=("program", "policy"))
def log_probs(
    program: Program, params: nnx.State, policy: Policy, record: PromptRecord, tokens: Int[Array, "B N"]
) -> Float[Array, "N B V"]:
    """Log-probabilities of the next token after each of N tokens that follow the prompt; float32."""

    def emit(logits: Float[Array, "B T V"], start: Array) -> Float[Array, "T B V"]:
        return jnp.swapaxes(jax.nn.log_softmax(logits), 0, 1)

    return _run(program, params, policy, record, tokens, emit)[0]


@partial(jax.jit, static_argnames=("program", "policy"))
def divergence(
    program: Program,
    params: nnx.State,
    policy: Policy,
    record: PromptRecord,
    tokens: Int[Array, "B N"],
    targets: Int[Array, "B N"],
    reference: Float[Array, "N B V"],
) -> tuple[dict[str, Float[Array, "N B"]], Any]:
    """How far the distributions of a cache are from a reference's.

    Args:
        program: the model's static half.
        params: its parameters.
        policy: the cache.
        record: the prompts.
        tokens: the tokens that follow them.
        targets: the token that truly follows each of those.
        reference: `log_probs` of the same tokens with the cache to compare with.

    Returns:
        ``kl``, KL(reference || cache) in nats; ``top1``, 1.0 where both prefer the same token; ``nll`` and
        ``reference_nll``, minus the log-probability of the target. And the cache after the last token.
    """

    def emit(logits: Float[Array, "B T V"], start: Array) -> dict[str, Float[Array, "T B"]]:
        count = logits.shape[1]
        ours = jnp.swapaxes(jax.nn.log_softmax(logits), 0, 1)
        theirs = lax.dynamic_slice_in_dim(reference, start, count, axis=0)
        index = jnp.swapaxes(lax.dynamic_slice_in_dim(targets, start, count, axis=1), 0, 1)[..., None]
        return {
            "kl": jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1),
            "top1": (theirs.argmax(axis=-1) == ours.argmax(axis=-1)).astype(jnp.float32),
            "nll": -jnp.take_along_axis(ours, index, axis=-1)[..., 0],
            "reference_nll": -jnp.take_along_axis(theirs, index, axis=-1)[..., 0],
        }

    return _run(program, params, policy, record, tokens, emit)


def _run(
    program: Program, params: nnx.State, policy: Policy, record: PromptRecord, tokens: Int[Array, "B N"], emit: Any
) -> tuple[Any, Any]:
    """Feeds all tokens; ``emit(logits, index of the chunk's first token)`` is stacked along the tokens."""
    cache = admit_record(policy, record, program.transform(program.bind(params)))
    width = policy.event_steps
    chunks, rest = divmod(tokens.shape[1], width)

    def feed(cache: Any, start: Array, count: int) -> tuple[Any, Any]:
        part = lax.dynamic_slice_in_dim(tokens, start, count, axis=1)
        counts = jnp.full((tokens.shape[0],), count, jnp.int32)
        logits, cache = step_logits(program, params, policy, cache, part, counts)
        return cache, emit(logits, start)

    def chunk(cache: Any, start: Array) -> tuple[Any, Any]:
        cache, out = feed(cache, start, width)
        return policy.route(cache, program.transform(program.bind(params))), out

    parts = []
    if chunks:
        cache, out = lax.scan(chunk, cache, jnp.arange(chunks, dtype=jnp.int32) * width)
        parts.append(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out))
    if rest:
        cache, out = feed(cache, jnp.int32(chunks * width), rest)
        parts.append(out)
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts), cache
