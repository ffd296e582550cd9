# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Events on a whole cache: when a window leaves the ring, row by row; what moves is a law of the policies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.cache import init_cache
from qevict_jax.event import route
from qevict_jax.ranking import RANKINGS
from qevict_jax.windows import KeyTransform
from tests.test_cache import LAYOUT
from tests.tier_contents import full_tokens, slots, window_positions

SINK, RECENT, W = LAYOUT.sink, LAYOUT.recent, LAYOUT.window
FIRST = SINK + RECENT + W  # tokens at which the first window leaves the ring
_route = jax.jit(lambda cache: route(cache, RANKINGS["decay"], KeyTransform(jnp.zeros(8), None)))


def cache_with(lengths):
    """Rows of so many tokens, none of their windows routed yet; a token's channels are its position."""
    cache = init_cache(LAYOUT, len(lengths))
    local = np.zeros(cache.local.shape, np.float32)
    for row, length in enumerate(lengths):
        for position in range(length):
            slot = LAYOUT.ring + position if position < SINK else (position - SINK) % LAYOUT.ring
            local[:, row, slot] = position
    return cache.replace(local=jnp.asarray(local), length=jnp.asarray(lengths, jnp.int32))


def test_each_row_has_its_own_clock():
    lengths = [0, 1, FIRST - 1, FIRST, FIRST + W - 1]
    routed = jax.device_get(_route(cache_with(lengths)))
    assert routed.aged.tolist() == [0, 0, 0, 1, 1]
    for row, aged in enumerate(routed.aged):
        for layer in range(2):
            at = slots(routed, layer, row)
            assert at.full == ({0: 0} if aged else {}) and not at.codes
            if aged:
                held = full_tokens(routed, layer, row, 0)
                wanted = np.broadcast_to(window_positions(LAYOUT, 0)[:, None, None, None], held.shape)
                np.testing.assert_array_equal(held, wanted)


def test_an_event_without_news_changes_nothing():
    cache = cache_with([FIRST - 1, 3])
    for before, after in zip(jax.tree.leaves(cache), jax.tree.leaves(_route(cache)), strict=True):
        np.testing.assert_array_equal(before, after)


def test_the_place_of_a_window_that_left_is_free():
    """Its score goes with it, and the next window there starts from nothing."""
    cache = cache_with([FIRST])
    score = cache.score._replace(ring=jnp.array([[[5.0, 3.0, 1.0]], [[7.0, 3.0, 1.0]]]))
    routed = _route(cache.replace(score=score))
    np.testing.assert_array_equal(routed.score.ring[:, 0], [[0, 3, 1], [0, 3, 1]])
    np.testing.assert_array_equal(routed.score.full[:, 0, 0], [5, 7])


def test_layers_decide_on_their_own():
    """With every slot taken, a newcomer that wins in one layer loses in the other."""
    windows = jnp.arange(7, dtype=jnp.int32)
    first = 7
    length = SINK + (first + 1) * W + RECENT
    cache = cache_with([length])
    taken = {
        "full_window": jnp.broadcast_to(windows[:3], (2, 1, 3)),
        "code_window": jnp.full((2, 1, 7), -1, jnp.int32).at[:, :, :4].set(windows[3:]),
        "aged": jnp.array([first], jnp.int32),
    }
    slot = first % LAYOUT.ring_windows
    ring = jnp.zeros((2, 1, 3)).at[0, 0, slot].set(9.0).at[1, 0, slot].set(0.5)
    score = cache.score._replace(ring=ring, full=jnp.full((2, 1, 3), 2.0), quant=jnp.ones((2, 1, 7)))
    routed = jax.device_get(_route(cache.replace(**taken, score=score)))
    wins, loses = slots(routed, 0, 0), slots(routed, 1, 0)
    assert first in wins.full and set(wins.full) | set(wins.codes) == {0, 1, 2, 3, 4, 5, first}
    assert set(loses.full) | set(loses.codes) == set(range(7))


@pytest.mark.parametrize("ranking", ["decay", "p_norm"])
def test_mass_becomes_score_and_starts_again(ranking):
    cache = cache_with([FIRST - 1, 4])
    ring = jnp.zeros((2, 2, 3)).at[:, 0].set(2.0)
    mass = cache.mass._replace(ring=ring)
    score = cache.score._replace(ring=jnp.ones((2, 2, 3)))
    routed = jax.jit(lambda cache: route(cache, RANKINGS[ranking], KeyTransform(jnp.zeros(8), None)))(
        cache.replace(mass=mass, score=score)
    )
    wanted = {"decay": 0.99 + 2.0, "p_norm": 1.0 + 8.0}[ranking]
    np.testing.assert_allclose(routed.score.ring[:, 0], wanted, rtol=1e-6)
    np.testing.assert_array_equal(routed.score.ring[:, 1], 1.0)  # that row was not fed: nothing fades
    np.testing.assert_array_equal(routed.mass.ring, 0.0)
