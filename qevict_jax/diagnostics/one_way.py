# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Appendix K's policy without promotion: Full -> Quantized -> Evicted, everything else as with "ranked"."""

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Int

from qevict_jax.cache import TieredCache
from qevict_jax.event import route
from qevict_jax.policies.qevict import QEvict
from qevict_jax.routing import Event, Moves, Slots
from qevict_jax.windows import KeyTransform


@dataclass(frozen=True)
class OneWay(QEvict):
    """QEvict in which a quantized window never returns to full precision.

    The full tier is still the best F of all candidates: a full window that falls out of them is quantized even though
    no other takes its slot. That is what sets it apart from residency "exact", which keeps its slots filled. The plan
    must have residency "exact", since codes are never dormant here.
    """

    def route(self, cache: TieredCache, transform: KeyTransform) -> TieredCache:
        """One routing event."""
        return route(cache, self.ranking, transform, partial(route_one_way, quant_windows=self.layout.quant_windows))


def route_one_way(slots: Slots, new: Event, quant_windows: int) -> tuple[Slots, Moves]:
    """Which windows move, for one layer of one row; see `qevict_jax.routing` for the words."""
    full, codes = slots.full_window.shape[0], slots.code_window.shape[0]
    windows = jnp.concatenate([slots.full_window, slots.code_window, new.window[None]])
    scores = jnp.concatenate([slots.full_score, slots.code_score, new.score[None]])
    there = windows >= 0
    of_full, of_codes = slice(0, full), slice(full, full + codes)
    rank = _ranks(windows, scores, there)
    quantized = jnp.zeros_like(there).at[of_codes].set(True)
    in_full = there & ~quantized & (rank < full)

    # what does not belong in the full tier competes for the codes
    wants_codes = there & ~in_full
    in_codes = wants_codes & (_ranks(windows, scores, wants_codes) < quant_windows)
    stays, kept = in_full[of_full], in_codes[of_codes]

    free = jnp.argmin(stays).astype(jnp.int32) if full else jnp.int32(0)
    target = jnp.where(in_full[-1], free, full)
    full_window = jnp.where(stays, slots.full_window, -1).at[target].set(new.window, mode="drop")
    full_score = slots.full_score.at[target].set(new.score, mode="drop")

    written = jnp.concatenate([in_codes[of_full], in_codes[-1:]])
    source = _first(written, full + 1, full + 1)
    slot = jnp.where(source <= full, _first(~kept, full + 1, codes), codes)
    source = jnp.minimum(source, full)
    index = jnp.where(source == full, windows.shape[0] - 1, source)
    code_window = jnp.where(kept, slots.code_window, -1).at[slot].set(windows[index], mode="drop")
    code_score = slots.code_score.at[slot].set(scores[index], mode="drop")
    moves = Moves(target[None], jnp.full((1,), codes, jnp.int32), slot, source)
    return Slots(full_window, full_score, code_window, code_score, slots.dormant), moves


def _ranks(windows: Int[Array, "n"], scores: Array, among: Array) -> Int[Array, "n"]:
    """How many of the windows ``among`` stand above each: a higher score, or an equal one and older."""
    above = (scores > scores[:, None]) | ((scores == scores[:, None]) & (windows < windows[:, None]))
    return jnp.sum(above & among, axis=1, dtype=jnp.int32)


def _first(flags: Array, count: int, filler: int) -> Int[Array, "count"]:
    return jnp.nonzero(flags, size=count, fill_value=filler)[0].astype(jnp.int32)
