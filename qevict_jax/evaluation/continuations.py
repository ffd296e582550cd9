# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of given continuations, with a compressed cache behind every scored token.

All of a context but its last token is a prompt; that token and the continuation are fed like decoded ones, W at a time,
with a routing event after each W. So what is scored is what a decoder with this cache would see, from the first token
of the continuation on.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from qevict_jax.config import CacheConfig
from qevict_jax.engine import bucket
from qevict_jax.models import LanguageModel
from qevict_jax.models.steps import Program, prefill, route, step_logits
from qevict_jax.policies import Policy, make_policy


def score_continuations(
    model: LanguageModel,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    config: Callable[[int], CacheConfig],
    *,
    batch_size: int | None = None,
) -> list[tuple[float, bool]]:
    """Scores one batch of continuations.

    Args:
        model: the model.
        pairs: context and continuation as token ids, at least one of each.
        config: the cache for a number of tokens in all, which is the padded length of the longest pair.
        batch_size: rows of the compiled program; None for as many as there are pairs.

    Returns:
        For each pair the natural log-probability of the continuation, and whether greedy decoding would produce it.

    Raises:
        QEvictError: the budget is too small for this length.
    """
    model.check_one_device("scoring of continuations")
    rows = max(len(pairs), batch_size or 0)
    prompts = [context[:-1] for context, _ in pairs]
    fed = [[context[-1], *continuation[:-1]] for context, continuation in pairs]
    # at least one column: a prompt of length 0 is legal, an array without columns is not
    size, steps = bucket(max(1, *map(len, prompts))), bucket(max(map(len, fed)))
    policy = make_policy(model.config.kv_shape(), config(size + steps), size + steps)
    lengths, counts = _lengths(prompts, rows), _lengths(fed, rows)
    log_probs, greedy = _score(
        model.program,
        model.params,
        policy,
        _padded(prompts, rows, size),
        lengths,
        _padded(fed, rows, steps),
        _padded([continuation for _, continuation in pairs], rows, steps),
        counts,
    )
    log_probs, greedy = np.asarray(log_probs, np.float64), np.asarray(greedy)
    return [
        (float(log_probs[row, : len(tokens)].sum()), bool(greedy[row, : len(tokens)].all()))
        for row, tokens in enumerate(fed)
    ]


@partial(jax.jit, static_argnames=("program", "policy"))
def _score(
    program: Program,
    params: nnx.State,
    policy: Policy,
    prompts: Int[Array, "B S"],
    lengths: Int[Array, "B"],
    fed: Int[Array, "B N"],
    targets: Int[Array, "B N"],
    counts: Int[Array, "B"],
) -> tuple[Float[Array, "B N"], Bool[Array, "B N"]]:
    """Log-probability of each target, and whether it is the most likely token; garbage beyond a row's count."""
    _, cache = prefill(program, params, policy, prompts, lengths)
    width, steps = policy.event_steps, fed.shape[1]
    fed, targets = (jnp.pad(x, ((0, 0), (0, -steps % width))) for x in (fed, targets))

    def chunk(cache: Any, start: Array) -> tuple[Any, tuple[Array, Array]]:
        part, wanted = (lax.dynamic_slice_in_dim(x, start, width, axis=1) for x in (fed, targets))
        count = jnp.clip(counts - start, 0, width)
        logits, cache = step_logits(program, params, policy, cache, part, count)
        log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[..., None], axis=-1)[..., 0]
        return route(program, params, policy, cache), (log_probs, logits.argmax(axis=-1) == wanted)

    starts = jnp.arange(fed.shape[1] // width, dtype=jnp.int32) * width
    _, (log_probs, greedy) = lax.scan(chunk, cache, starts)
    batch = fed.shape[0]
    log_probs, greedy = (jnp.swapaxes(x, 0, 1).reshape(batch, -1)[:, :steps] for x in (log_probs, greedy))
    return log_probs, greedy


def _lengths(sequences: Sequence[Sequence[int]], rows: int) -> Int[Array, "B"]:
    return jnp.asarray([*map(len, sequences), *[0] * (rows - len(sequences))], jnp.int32)


def _padded(sequences: Sequence[Sequence[int]], rows: int, size: int) -> Int[Array, "B N"]:
    padded = np.zeros((rows, size), np.int32)
    for row, tokens in enumerate(sequences):
        padded[row, : len(tokens)] = tokens
    return jnp.asarray(padded)
