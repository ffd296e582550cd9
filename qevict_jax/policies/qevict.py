# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""QEvict: three tiers of windows under a byte budget (paper section 4; arXiv:2608.05326).

Deviations from the paper are options of `CacheConfig`; `CacheConfig.paper` sets all of them to the paper's choice,
except that scores take every decode step into account, where the paper's code sees attention only at routing steps
(Appendix
H).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8

from qevict_jax.admission import admit, aged_windows
from qevict_jax.attention import start_mass, tiered_attention
from qevict_jax.cache import PerWindow, TieredCache, TierLayout, append_tokens, init_cache
from qevict_jax.event import route
from qevict_jax.head_split import ONE_DEVICE, HeadSplit
from qevict_jax.plan import CachePlan
from qevict_jax.policies.base import Prompt, Tier
from qevict_jax.policies.full import merge_kv
from qevict_jax.ranking import RANKINGS, Ranking
from qevict_jax.token_scores import pool
from qevict_jax.windows import KeyTransform


@dataclass(frozen=True)
class QEvict:
    """The tiered cache behind the policy interface.

    On several devices each sums up the mass of its own heads; they agree on the mean when windows are ranked.
    """

    plan: CachePlan
    split: HeadSplit = ONE_DEVICE

    @property
    def layout(self) -> TierLayout:
        """Capacities."""
        assert self.plan.layout is not None
        return self.plan.layout

    @property
    def ranking(self) -> Ranking:
        """The ranking function; scores of keys are means over all heads."""
        ranking = RANKINGS[self.plan.config.ranking]
        return ranking if ranking.keys is None else ranking._replace(keys=self._of_all_heads(ranking.keys))

    def _of_all_heads(self, of_keys: Callable[[Array], Array]) -> Callable[[Array], Array]:
        return lambda keys: self.split.mean(of_keys(keys))

    @property
    def event_steps(self) -> int:
        """W."""
        return self.layout.window

    def init(self, batch: int) -> TieredCache:
        """An empty cache."""
        return init_cache(self.layout, batch)

    def admit(self, cache: TieredCache, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform) -> TieredCache:
        """Scores the prompt's windows and writes this layer's tiers."""
        config = self.plan.config
        mass = start_mass(
            prompt.q,
            prompt.k,
            prompt.lse,
            prompt.length,
            prefill_scores=config.prefill_scores,
            last_queries=config.last_queries,
            window=config.window,
            sink=config.sink,
            implementation=config.implementation,
        )
        bias = None if transform.bias is None else transform.bias[layer]
        tokens = merge_kv(prompt.k, prompt.v)
        begun = config.sink + jnp.arange(mass.shape[1]) * config.window < prompt.length[:, None]
        mass = jnp.where(begun, pool(self.split.mean(mass), config.prefill_pool, "avg"), 0.0)
        return admit(cache, layer, tokens, mass, prompt.length, self.ranking, transform.inv_freq, bias)

    def admitted(self, cache: TieredCache, length: Int[Array, "B"]) -> TieredCache:
        """Sets the lengths."""
        return replace(cache, length=length, aged=aged_windows(self.layout, length))

    def attend(
        self,
        cache: TieredCache,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[TieredCache, Float[Array, "B T H D"], PerWindow]:
        """Appends to the ring, attends to all tiers, and returns the mass of every window."""
        positions = cache.length[:, None] + jnp.arange(valid.shape[1], dtype=jnp.int32)
        cache = replace(cache, local=append_tokens(cache.local, self.layout, layer, tokens, positions, valid))
        out, mass = tiered_attention(cache, layer, q, positions, valid, transform, self.plan.config.implementation)
        return cache, out, mass

    def observe(self, cache: TieredCache, seen: PerWindow, count: Int[Array, "B"]) -> TieredCache:
        """Adds the mass of this step to the scores, or to the mass since the last event."""
        cache = replace(cache, length=cache.length + count)
        if self.ranking.event is not None:
            return replace(cache, mass=jax.tree.map(jnp.add, cache.mass, seen))
        return replace(cache, score=jax.tree.map(self.ranking.observe, cache.score, seen))

    def route(self, cache: TieredCache, transform: KeyTransform) -> TieredCache:
        """One routing event."""
        if self.ranking.event is not None:
            cache = replace(cache, mass=self.split.mean(cache.mass))
        elif self.ranking.keys is None:
            # what all agreed on at the last event, and each one's mass since then
            cache = replace(cache, score=self.split.mean(cache.score))
        return route(cache, self.ranking, transform)

    def placement(self, cache: TieredCache) -> Int8[Array, "L B 1 S"]:
        """The tier of every position; heads share the windows of their layer."""
        layout = self.layout
        position = jnp.arange(self.plan.total_len, dtype=jnp.int32)
        window = (position - layout.sink) // layout.window
        layers, batch = cache.score.ring.shape[:2]
        rows = jnp.ix_(jnp.arange(layers), jnp.arange(batch))
        # one tier per window, and a place behind them for slots that are not attended
        count = max(0, self.plan.total_len - layout.sink) // layout.window + 1
        tier = jnp.full((layers, batch, count + 1), Tier.EVICTED, jnp.int8)
        if cache.full_window is not None:
            slot = jnp.where(cache.full_window >= 0, cache.full_window, count)
            tier = tier.at[(*(axis[..., None] for axis in rows), slot)].set(jnp.int8(Tier.FULL))
        if cache.code_window is not None:
            attended = cache.code_window >= 0
            if cache.dormant is not None:
                attended &= ~cache.dormant
            slot = jnp.where(attended, cache.code_window, count)
            tier = tier.at[(*(axis[..., None] for axis in rows), slot)].set(jnp.int8(Tier.QUANTIZED))
        tier = tier[:, :, jnp.clip(window, 0, count - 1)]
        tier = jnp.where(window >= cache.aged[:, None], jnp.int8(Tier.RECENT), tier)
        tier = jnp.where(position < layout.sink, jnp.int8(Tier.SINK), tier)
        tier = jnp.where(position < cache.length[:, None], tier, jnp.int8(Tier.UNSEEN))
        return tier[:, :, None]
