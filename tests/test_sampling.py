# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Draws against a numpy reference of the same filters."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.sampling import ANY_SAMPLING, Filters, Numbers, Sampling, sample
from qevict_jax.types import QEvictError
from tests.quick_compile import QUICK

draw_tokens = jax.jit(sample, static_argnums=1, compiler_options=QUICK)
LOGITS = np.array([1.5, -2.0, 3.0, 0.25, 2.5, -6.0, 2.0, 0.0], np.float32)
DRAWS = 4000


def reference(logits, sampling):
    """Probabilities after temperature, top-k, top-p and min-p, one plain step at a time; float64."""
    logits = logits.astype(np.float64) / sampling.temperature
    order = np.argsort(-logits, kind="stable")
    kept = order[: sampling.top_k or len(order)]
    probs = np.exp(logits[kept] - logits[kept].max())
    probs /= probs.sum()
    reached = np.cumsum(probs) - probs
    kept = kept[reached < sampling.top_p] if sampling.top_p < 1 else kept
    kept = kept[np.exp(logits[kept] - logits.max()) >= sampling.min_p]
    out = np.zeros_like(logits)
    out[kept] = np.exp(logits[kept] - logits.max())
    return out / out.sum()


def draw(logits, sampling, draws=DRAWS):
    rows = jnp.tile(jnp.asarray(logits)[None], (draws, 1))
    return np.asarray(draw_tokens(rows, Filters.of(sampling), same(sampling, draws), jnp.zeros(draws, jnp.int32)))


def same(sampling, rows):
    """The numbers of a batch of rows with one sampling."""
    return Numbers.batch([sampling] * rows, range(rows))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.5),
        Sampling(temperature=2.0, top_k=3),
        Sampling(temperature=1.0, top_k=1000),
        Sampling(temperature=1.0, top_p=0.7),
        Sampling(temperature=1.0, top_p=1e-6),
        Sampling(temperature=1.0, top_p=1e-50),  # 0 in float32
        Sampling(temperature=1.0, min_p=0.3),
        Sampling(temperature=1.0, min_p=1.0),
        Sampling(temperature=1.5, top_k=5, top_p=0.9, min_p=0.2),
        Sampling(temperature=3.0, top_k=4, top_p=0.5),
    ],
    ids=str,
)
def test_frequencies_are_the_filtered_probabilities(sampling):
    expected = reference(LOGITS, sampling)
    counts = np.bincount(draw(LOGITS, sampling), minlength=len(LOGITS))
    assert not counts[expected == 0].any()
    deviation = np.sqrt(DRAWS * expected * (1 - expected))
    assert (np.abs(counts - DRAWS * expected) <= 5 * deviation).all()


@pytest.mark.parametrize("only", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-6}], ids=str)
def test_filters_at_their_limit_are_greedy(only):
    sampling = Sampling(**{"temperature": 1.0, **only})
    assert set(draw(LOGITS, sampling, 50)) == {int(LOGITS.argmax())}


def test_greedy_takes_the_first_of_equals():
    rows = jnp.asarray([[0.0, 2.0, 2.0], [1.0, 0.0, 1.0]])
    chosen = draw_tokens(rows, Filters.of(Sampling()), same(Sampling(), 2), jnp.zeros(2, jnp.int32))
    assert chosen.tolist() == [1, 0]


def test_a_row_draws_the_same_whatever_is_in_the_batch():
    sampling = Sampling(temperature=1.0, seed=3)
    noise = np.random.default_rng(0).standard_normal((6, 50)).astype(np.float32)
    position = jnp.arange(6, dtype=jnp.int32)
    filters, numbers = Filters.of(sampling), same(sampling, 6)
    whole = draw_tokens(jnp.asarray(noise), filters, numbers, position)
    noise[3:] = 0
    changed = draw_tokens(jnp.asarray(noise), filters, numbers, position)
    assert whole[:3].tolist() == changed[:3].tolist()


MIXED = [
    Sampling(),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=2.0, top_k=3, seed=2),
    Sampling(temperature=1.5, top_p=0.8, seed=2**32 - 1),
    Sampling(temperature=0.7, min_p=0.2, seed=4),
]


def test_rows_with_settings_of_their_own_draw_as_they_do_alone():
    """A setting that a row does not use takes nothing from it, though the others' filters are compiled in."""
    logits = jnp.asarray(np.random.default_rng(1).standard_normal((len(MIXED), 300)).astype(np.float32))
    for count in range(8):
        position = jnp.full(len(MIXED), count, jnp.int32)
        mixed = draw_tokens(logits, ANY_SAMPLING, Numbers.of(*MIXED), position)
        for row, sampling in enumerate(MIXED):
            alone = draw_tokens(logits[row : row + 1], Filters.of(sampling), Numbers.of(sampling), position[:1])
            assert alone.tolist() == [mixed[row]]


def test_filters_of_several_samplings_are_those_that_any_uses():
    assert Filters.of(*MIXED) == ANY_SAMPLING
    assert Filters.of(*MIXED[:2]) == Filters.of(MIXED[1])
    assert Filters.of(MIXED[0]).greedy


def test_seed_and_position_change_the_draw():
    def tokens(seed, position):
        numbers = same(Sampling(temperature=1.0, seed=seed), 64)
        rows = jnp.zeros((64, 1000))
        filters = Filters.of(Sampling(temperature=1.0))
        return tuple(draw_tokens(rows, filters, numbers, jnp.full(64, position, jnp.int32)).tolist())

    assert tokens(1, 0) == tokens(1, 0)
    assert len({tokens(1, 0), tokens(2, 0), tokens(1, 1)}) == 3


def test_numbers_compile_nothing_new():
    chex.clear_trace_counter()
    compiled = jax.jit(chex.assert_max_traces(sample, n=1), static_argnums=1)
    position = jnp.zeros(1, jnp.int32)
    for top_k in (2, 3, 4):
        sampling = Sampling(temperature=0.1 * top_k, top_k=top_k, seed=top_k)
        compiled(jnp.asarray(LOGITS)[None], Filters.of(sampling), Numbers.of(sampling), position)


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"min_p": 2.0},
        {"seed": -1},
        {"seed": 2**32},
    ],
    ids=str,
)
def test_bad_numbers_are_named(bad):
    (name,) = bad
    with pytest.raises(QEvictError, match=name):
        Sampling(**bad)
