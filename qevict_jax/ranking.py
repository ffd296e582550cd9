# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""How important a window is: the ranking functions of paper Appendix J, higher is kept.

A ranking is a few pure functions on arrays of any shape, one number a window. `RANKINGS` is the table that the cache,
the tests and the benchmarks share; nothing else knows which ranking is in use.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

DECAY = 0.99
P_NORM = 3


class Ranking(NamedTuple):
    """A ranking function.

    Attributes:
        observe: ``(score, mass of this step) -> score`` at every decode step, for rankings without ``event``.
        event: ``(score, mass since the last event) -> score`` at a routing event, or None; if given, the cache keeps
            the mass since the last event.
        start: ``(start mass of the prompt) -> score``.
        keys: ``(keys) -> score`` from the keys ``[*n, W, K, D]`` of a window, or None; such a score is given when a
            window leaves the ring and never changes.
    """

    observe: Callable[[Array, Array], Array]
    event: Callable[[Array, Array], Array] | None
    start: Callable[[Array], Array]
    keys: Callable[[Array], Array] | None = None


def _keep(score: Float[Array, "*n"], mass: Float[Array, "*n"]) -> Float[Array, "*n"]:
    return score


def _same(mass: Float[Array, "*n"]) -> Float[Array, "*n"]:
    return mass


def _add(score: Float[Array, "*n"], mass: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Eq. 1 and 21."""
    return score + mass


def _decay(score: Float[Array, "*n"], mass: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Eq. 22."""
    return DECAY * score + mass


def _power(score: Float[Array, "*n"], mass: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Eq. 23 without the root, which does not change the order."""
    return score + mass**P_NORM


def _negative_norm(keys: Float[Array, "*n W K D"]) -> Float[Array, "*n"]:
    """Eq. 24, mean over heads and tokens. RoPE does not change a norm."""
    return -jnp.linalg.norm(keys.astype(jnp.float32), axis=-1).mean(axis=(-1, -2))


RANKINGS = {
    "cumulative": Ranking(observe=_add, event=None, start=_same),
    "decay": Ranking(observe=_keep, event=_decay, start=_same),
    "p_norm": Ranking(observe=_keep, event=_power, start=lambda mass: mass**P_NORM),
    "key_norm": Ranking(observe=_keep, event=None, start=jnp.zeros_like, keys=_negative_norm),
}
