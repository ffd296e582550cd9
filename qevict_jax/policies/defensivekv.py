# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""DefensiveKV and Layer-DefensiveKV: the worst case of the observed attention, not its mean (FFY0/DefensiveKV).

    m_j = max over the group and the last W queries of the pooled attention, each row rescaled to its sum before pooling
    score_j = max(m_j, mean over j of m_j) * n_j / (sum over KV heads of n_j)        n_j as in `criticalkv`

The layer's ``K*N`` tokens are the best of all heads, without a floor (DefensiveKV); or the ``L*K*N`` of the cache are
the best of all heads and layers (Layer-DefensiveKV). Tokens that make up the first 0.9 of a head's mean attention, the
window's own share counted in, are kept first, at most N per head. Deviations:
- the window's share is its mean attention mass; the original reads it after the window's columns were cut off, which
  gives the mass of the W tokens before it;
- protected tokens are a mask, not the largest score, so a tie evicts none of them; probabilities stay float32;
- while generating (the original keeps everything from then on): the maximum goes on over all later queries,
  ``m_j = max(m_j, max over g of a_(g,j))``, not pooled, older maxima fading as scores do in `snapkv`; the mean stays
  the prompt's and tokens made since have none; nothing is kept first; layers keep the rows that the prompt gave them.

Layer-DefensiveKV needs the scores of all layers. The original keeps the whole prompt's cache until the last layer; here
each layer's tokens compete with the best of those before it, which ends in the same set and never holds more than the
budget and one layer. Rows of all layers are one array; a layer reads a static window of ``layer_share`` times the mean
and so can hold no more than that. All rows are charged, and used: segments only differ in length.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qevict_jax.checks import check_integer, check_number
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan
from qevict_jax.policies.base import Prompt
from qevict_jax.policies.token_method import Candidates, Start
from qevict_jax.policies.token_plan import plan_token_rows
from qevict_jax.policies.token_policy import TokenPolicy
from qevict_jax.token_scores import observe_prompt, pool
from qevict_jax.token_selection import ranks
from qevict_jax.types import KVShape
from qevict_jax.value_norms import output_norms


@dataclass(frozen=True)
class Options:
    """Parameters of DefensiveKV; the numbers are the original's.

    Attributes:
        window: W, prompt queries that score, and prompt tokens kept whatever their score.
        kernel: tokens that are pooled (mean); 1 for none.
        first_mass: attention mass of a head that is kept first, the window's own included.
        recent: newest tokens safe from eviction while generating; 0 for as many as the window.
        decay: what an event leaves of older scores for every token that came; 1 for all of them.
    """

    window: int = 32
    kernel: int = 5
    first_mass: float = 0.9
    recent: int = 0
    decay: float = 0.9

    def __post_init__(self) -> None:
        check_integer("window", self.window, 1)
        check_integer("kernel", self.kernel, 1)
        check_number("first_mass", self.first_mass, 0, 1)
        check_integer("recent", self.recent, 0)
        check_number("decay", self.decay, 0, 1)


@dataclass(frozen=True)
class LayerOptions(Options):
    """Parameters of Layer-DefensiveKV: those of `Options`, and what static shapes ask for.

    Attributes:
        layer_share: the most that a layer may hold, as a multiple of the mean; what it reads at every step.
    """

    layer_share: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("layer_share", self.layer_share, 1)


@dataclass(frozen=True)
class DefensiveKV:
    """The method."""

    options: Options
    layered: bool = False
    per_head: bool = False
    weighted: bool = True

    @property
    def decay(self) -> float:
        """See `Options`."""
        return self.options.decay

    def start(self, prompt: Prompt, kernel: Float[Array, "H_D E"], per_head: int) -> Start:
        """Defensive scores, value weights, and the tokens that come first."""
        options, size = self.options, prompt.k.shape[1]
        old = jnp.arange(size) < prompt.length[:, None] - options.window

        def reduce(probabilities: Float[Array, "B G W S"]) -> dict[str, Float[Array, "B S"]]:
            row = jnp.where(old[:, None, None], probabilities, 0.0)
            pooled = jnp.where(old[:, None, None], pool(row, options.kernel, "avg"), 0.0)
            total = pooled.sum(axis=-1, keepdims=True)
            pooled = pooled * row.sum(axis=-1, keepdims=True) / jnp.where(total > 0, total, 1.0)
            worst = pooled.max(axis=(1, 2))
            count = jnp.maximum(1, old.sum(axis=-1, keepdims=True)).astype(jnp.float32)
            prior = worst.sum(axis=-1, keepdims=True) / count
            own = probabilities.max(axis=(1, 2))
            mean = probabilities.sum(axis=2).mean(axis=1) / options.window
            return {"score": jnp.where(old, jnp.maximum(worst, prior), own), "mean": mean}

        made = observe_prompt(prompt.q, prompt.k, prompt.lse, prompt.length, options.window, reduce)
        pinned = self._first(made["mean"], old, per_head)
        return Start(made["score"], self.weigh(prompt.v, kernel), pinned | ~old[..., None])

    def _first(self, mean: Float[Array, "B S K"], old: Bool[Array, "B S"], most: int) -> Bool[Array, "B S K"]:
        """Of each head the best until their mass comes up to what is asked for."""
        window_mass = jnp.where(old[..., None], 0.0, mean).sum(axis=1).mean(axis=-1)
        wanted = (self.options.first_mass - window_mass)[:, None, None]
        mass = jnp.where(old[..., None], mean, 0.0)
        mass = mass / jnp.maximum(mass.sum(axis=1, keepdims=True), jnp.finfo(jnp.float32).tiny)
        order = jnp.argsort(-mass, axis=1, stable=True)
        reached = jnp.cumsum(jnp.take_along_axis(mass, order, axis=1), axis=1) >= wanted
        # the first that reaches it is not kept first any more; without rounding one always does
        count = jnp.where(reached.any(axis=1), reached.argmax(axis=1), 0)
        place = jnp.argsort(order, axis=1)
        return (place < jnp.minimum(count, most)[:, None]) & old[..., None]

    def choose(self, candidates: Candidates) -> Bool[Array, "n"]:
        """The best of all heads."""
        c = candidates
        assert c.weight is not None
        return ranks(c.score * c.weight, c.valid, c.pinned) < c.capacity

    def observed(self, probabilities: Float[Array, "B T K G n"]) -> Float[Array, "B K n"]:
        """Maximum over the group and the queries."""
        return probabilities.max(axis=(1, 3))

    def refresh(self, score: Float[Array, "*n"], seen: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The maximum."""
        return jnp.maximum(score, seen)

    def weigh(self, values: Float[Array, "B n K D"], kernel: Float[Array, "H_D E"]) -> Float[Array, "B n K"]:
        """Share of each KV head in a token's value norms."""
        norms = output_norms(values, kernel)
        return norms / jnp.maximum(norms.sum(axis=-1, keepdims=True), jnp.finfo(jnp.float32).tiny)


def plan_defensivekv(
    shape: KVShape, config: CacheConfig, options: Options, total_len: int, slot_multiple: int
) -> CachePlan:
    """Rows of a budget; of all layers together with `LayerOptions`."""
    method, recent = _method(options), options.recent or options.window
    share = options.layer_share if isinstance(options, LayerOptions) else 1.0
    return plan_token_rows(shape, config, method, total_len, slot_multiple, recent, share)


def make_defensivekv(plan: CachePlan, shape: KVShape, options: Options) -> TokenPolicy:
    """The policy."""
    return TokenPolicy(plan, _method(options))


def _method(options: Options) -> DefensiveKV:
    return DefensiveKV(options, layered=isinstance(options, LayerOptions))
