# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The ablation "quantized tier inaccessible": what the recoverable tier is worth to the rest of the cache."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8

from qevict_jax.cache import PerWindow, TieredCache
from qevict_jax.policies.base import Tier
from qevict_jax.policies.qevict import QEvict
from qevict_jax.windows import KeyTransform


@dataclass(frozen=True)
class HiddenTier(QEvict):
    """QEvict whose attention does not see quantized windows; their bytes are not given to anyone else.

    They gain no mass while hidden, and come into sight if routing promotes them.
    """

    def attend(
        self,
        cache: TieredCache,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[TieredCache, Float[Array, "B T H D"], PerWindow]:
        """Attends to sinks, recent tokens and full windows alone."""
        if cache.code_window is None:
            return super().attend(cache, layer, q, tokens, valid, transform)
        hidden = replace(cache, code_window=jnp.full_like(cache.code_window, -1))
        hidden, out, mass = super().attend(hidden, layer, q, tokens, valid, transform)
        return replace(hidden, code_window=cache.code_window), out, mass

    def placement(self, cache: TieredCache) -> Int8[Array, "L B 1 S"]:
        """What is hidden counts as evicted."""
        tier = super().placement(cache)
        return jnp.where(tier == Tier.QUANTIZED, jnp.int8(Tier.EVICTED), tier)
