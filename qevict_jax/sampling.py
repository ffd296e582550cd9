# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Choosing the next token from logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from qevict_jax.types import QEvictError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Filters apply in the order of Hugging Face: temperature, top-k, top-p, min-p.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token and uses no randomness.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the most likely tokens until their probability reaches p (arXiv:1904.09751); 1 keeps all.
        min_p: keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
        seed: of the random draws; each row of a batch draws on its own, a request alone as the first row does.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise QEvictError(f"temperature={self.temperature} must be 0 (greedy) or positive")
        if self.top_k < 0:
            raise QEvictError(f"top_k={self.top_k} must be 0 (off) or a positive count")
        if not 0 < self.top_p <= 1:
            raise QEvictError(f"top_p={self.top_p} must lie in (0, 1]; 1 turns it off")
        if not 0 <= self.min_p <= 1:
            raise QEvictError(f"min_p={self.min_p} must lie in [0, 1]; 0 turns it off")
        if not 0 <= self.seed < 2**32:
            raise QEvictError(f"seed={self.seed} must lie in 0 .. 2**32 - 1")


class Filters(NamedTuple):
    """Which parts of `Sampling` any row may use: static, so that greedy decoding has no random numbers and no sort."""

    greedy: bool
    top_k: bool
    top_p: bool
    min_p: bool

    @classmethod
    def of(cls, *samplings: Sampling) -> "Filters":
        """The filters that some samplings turn on."""
        return cls(
            greedy=all(sampling.temperature == 0 for sampling in samplings),
            top_k=any(sampling.top_k > 0 for sampling in samplings),
            top_p=any(sampling.top_p < 1 for sampling in samplings),
            min_p=any(sampling.min_p > 0 for sampling in samplings),
        )


ANY_SAMPLING = Filters(greedy=False, top_k=True, top_p=True, min_p=True)


class Numbers(NamedTuple):
    """The numbers of `Sampling` for every row: changing them compiles nothing.

    ``row`` tells rows of one seed apart, so that a row draws the same wherever it stands in a batch.
    """

    temperature: Float[Array, "B"]
    top_k: Int[Array, "B"]
    top_p: Float[Array, "B"]
    min_p: Float[Array, "B"]
    seed: UInt32[Array, "B"]
    row: Int[Array, "B"]

    @classmethod
    def of(cls, *samplings: Sampling) -> "Numbers":
        """One row for each sampling."""
        return cls.batch(samplings, [0] * len(samplings))

    @classmethod
    def batch(cls, samplings: Sequence[Sampling], rows: Sequence[int]) -> "Numbers":
        """The samplings of a batch; ``rows`` are the numbers of each among those with the same seed."""

        def column(name: str, dtype: Any) -> Array:
            return jnp.asarray(np.array([getattr(sampling, name) for sampling in samplings], dtype))

        temperature, top_p, min_p = (column(name, np.float32) for name in ("temperature", "top_p", "min_p"))
        top_k, seed = column("top_k", np.int32), column("seed", np.uint32)
        return cls(temperature, top_k, top_p, min_p, seed, jnp.asarray(np.array(rows, np.int32)))


def sample(
    logits: Float[Array, "B V"], filters: Filters, numbers: Numbers, position: Int[Array, "B"]
) -> Int[Array, "B"]:
    """One token per row.

    What no row of the batch uses at the moment is not computed either, although it is compiled.

    Args:
        logits: float32.
        filters: which filters are compiled in.
        numbers: their numbers and the seed of each row; a temperature of 0 takes the most likely token.
        position: how many tokens each row has drawn before.
    """
    likeliest = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    if filters.greedy:
        return likeliest
    random = numbers.temperature > 0

    def draw(logits: Array) -> Array:
        kept = _filtered(logits / jnp.where(random, numbers.temperature, 1.0)[:, None], filters, numbers, random)
        drawn = jax.vmap(_draw)(kept, numbers.seed, numbers.row, position)
        return jnp.where(random, drawn, likeliest)

    return lax.cond(random.any(), draw, lambda logits: likeliest, logits)


def _draw(logits: Float[Array, "V"], seed: UInt32[Array, ""], row: Int[Array, ""], count: Int[Array, ""]) -> Array:
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), row), count)
    return jax.random.categorical(key, logits).astype(jnp.int32)


def _filtered(logits: Float[Array, "B V"], filters: Filters, numbers: Numbers, random: Bool[Array, "B"]) -> Array:
    """Logits with those of excluded tokens at minus infinity."""
    if filters.top_k or filters.top_p:
        some = random & ((numbers.top_k > 0) | (numbers.top_p < 1))
        logits = lax.cond(some.any(), lambda x: _most_likely(x, filters, numbers), lambda x: x, logits)
    if filters.min_p:
        floor = logits.max(axis=-1, keepdims=True) + jnp.log(numbers.min_p)[:, None]
        logits = jnp.where(logits >= floor, logits, -jnp.inf)
    return logits


def _most_likely(logits: Float[Array, "B V"], filters: Filters, numbers: Numbers) -> Float[Array, "B V"]:
    """Top-k, then top-p."""
    ordered = -jnp.sort(-logits, axis=-1)
    rank = jnp.arange(ordered.shape[-1])
    if filters.top_k:
        most = jnp.where(numbers.top_k > 0, numbers.top_k, ordered.shape[-1])
        ordered = jnp.where(rank < most[:, None], ordered, -jnp.inf)
    if filters.top_p:
        probs = jax.nn.softmax(ordered, axis=-1)
        before = jnp.cumsum(probs, axis=-1) - probs
        top_p = numbers.top_p[:, None]
        # sums of rounded probabilities may pass 1 before the last token, and the smallest top_p are 0 in float32
        ordered = jnp.where((before < top_p) | (top_p >= 1) | (rank == 0), ordered, -jnp.inf)
    least = jnp.min(jnp.where(jnp.isfinite(ordered), ordered, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits >= least, logits, -jnp.inf)
