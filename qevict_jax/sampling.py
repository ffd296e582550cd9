# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Choosing the next token from logits."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from qevict_jax.types import QEvictError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Filters apply in the order of Hugging Face: temperature, top-k, top-p, min-p.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token and uses no randomness.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the most likely tokens until their probability reaches p (arXiv:1904.09751); 1 keeps all.
        min_p: keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
        seed: of the random draws; each row of a batch draws on its own.
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
    """Which parts of `Sampling` are in use: static, so that greedy decoding never touches random numbers or a sort."""

    greedy: bool
    top_k: bool
    top_p: bool
    min_p: bool

    @classmethod
    def of(cls, sampling: Sampling) -> "Filters":
        """The filters that a sampling turns on."""
        return cls(sampling.temperature == 0, sampling.top_k > 0, sampling.top_p < 1, sampling.min_p > 0)


class Numbers(NamedTuple):
    """The numbers of `Sampling` as arrays: changing them compiles nothing."""

    temperature: Float[Array, ""]
    top_k: Int[Array, ""]
    top_p: Float[Array, ""]
    min_p: Float[Array, ""]
    key: Key[Array, ""]

    @classmethod
    def of(cls, sampling: Sampling) -> "Numbers":
        """The arrays of a sampling."""
        floats = (sampling.temperature, sampling.top_p, sampling.min_p)
        temperature, top_p, min_p = (jnp.float32(x) for x in floats)
        return cls(temperature, jnp.int32(sampling.top_k), top_p, min_p, jax.random.key(sampling.seed))


def sample(
    logits: Float[Array, "B V"], filters: Filters, numbers: Numbers, position: Int[Array, "B"]
) -> Int[Array, "B"]:
    """One token per row.

    Args:
        logits: float32.
        filters: which filters are on.
        numbers: their numbers and the seed's key.
        position: how many tokens each row has drawn before; with the row's index it makes the row's randomness, so a
            row draws the same whatever else is in the batch.
    """
    if filters.greedy:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = logits / numbers.temperature
    if filters.top_k or filters.top_p:
        ordered = -jnp.sort(-logits, axis=-1)
        if filters.top_k:
            rank = jnp.arange(ordered.shape[-1])
            ordered = jnp.where(rank < numbers.top_k, ordered, -jnp.inf)
        if filters.top_p:
            probs = jax.nn.softmax(ordered, axis=-1)
            before = jnp.cumsum(probs, axis=-1) - probs
            ordered = jnp.where(before < numbers.top_p, ordered, -jnp.inf)
        least = jnp.min(jnp.where(jnp.isfinite(ordered), ordered, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits >= least, logits, -jnp.inf)
    if filters.min_p:
        floor = logits.max(axis=-1, keepdims=True) + jnp.log(numbers.min_p)
        logits = jnp.where(logits >= floor, logits, -jnp.inf)

    def draw(row: Array, count: Array, logits: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(numbers.key, row), count)
        return jax.random.categorical(key, logits)

    return jax.vmap(draw)(jnp.arange(logits.shape[0]), position, logits).astype(jnp.int32)
