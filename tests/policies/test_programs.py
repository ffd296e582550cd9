# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The compiled programs of every policy: one trace for all prompts, rows apart from each other, no garbage inside."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.cache import TieredCache, local_positions
from qevict_jax.models import steps
from tests.policy_table import CASES, TIERED
from tests.quick_compile import QUICK
from tests.recording import (
    BATCH,
    INACTIVE,
    STOPS,
    counts,
    driver,
    lengths,
    make_driver,
    play,
    recording,
    some_tokens,
)

# a chunk is one more program to compile: one case of each kind of tier, ranking, dtype and window
CHUNKED = [
    "full",
    "paper",
    "tuned",
    "two_tiers",
    "exact_q09_bias",
    "exact_float16",
    "exact_key_norm",
    "ranked_decay",
    "ranked_p_norm",
    "window_32",
    "streaming_llm",
    "snapkv",
    "layer_defensivekv",
    "kivi",
    "kvquant",
    "zipcache",
]


def rows_of(tree, row):
    """One row of a cache: arrays have the batch first, or after the layers, which are fewer."""
    return jax.tree.map(lambda x: x[row] if x.shape[0] == BATCH else x[:, row], tree)


@pytest.mark.parametrize("name", CASES)
def test_a_row_does_not_see_the_others(name):
    """Bitwise the same with the other rows empty; and nothing is traced again for other prompts and lengths."""
    made, whole = driver(name), recording(name)
    per_event = made.policy.event_steps
    row = 0
    only = np.arange(BATCH) == row
    tokens = np.where(only[:, None], some_tokens(made.case, per_event), 9)
    count = counts(made.case, per_event) * only.astype(np.int32)
    alone = play(made, tokens, lengths(made.case) * only.astype(np.int32), count)
    for ours, theirs in zip(alone, whole, strict=True):
        chex.assert_trees_all_equal(rows_of(ours.cache, row), rows_of(theirs.cache, row))
        if ours.logits is not None:
            np.testing.assert_array_equal(ours.logits[row], theirs.logits[row])


@pytest.mark.parametrize("name", CASES)
def test_inactive_rows_do_not_change(name):
    """Nothing is appended, scored, decayed or moved, in a row that was never used and in one that has stopped."""
    moments = recording(name)
    fed, settled = True, False
    for before, after in zip(moments, moments[1:], strict=False):
        chex.assert_trees_all_equal(rows_of(before.cache, INACTIVE), rows_of(after.cache, INACTIVE))
        if after.kind == "step":
            fed = bool(after.count[STOPS])
        # its last tokens may still bring a window to the first event after them
        if not fed and (after.kind == "step" or settled):
            chex.assert_trees_all_equal(rows_of(before.cache, STOPS), rows_of(after.cache, STOPS))
        settled = not fed and (settled or after.kind == "route")
    assert not fed


@pytest.mark.parametrize("name", TIERED)
def test_unused_slots_do_not_leak(name):
    """NaN in every slot and ring row that holds no token changes no bit of a logit nor of what is used."""
    made = driver(name)
    per_event = made.policy.event_steps
    count = counts(made.case, per_event)
    poisoned = play(made, some_tokens(made.case, per_event), lengths(made.case), count, change=_poison)
    for ours, theirs in zip(poisoned, recording(name), strict=True):
        chex.assert_trees_all_equal(ours.cache.full_window, theirs.cache.full_window)
        chex.assert_trees_all_equal(ours.cache.code_window, theirs.cache.code_window)
        chex.assert_trees_all_equal(ours.cache.score, theirs.cache.score)
        if ours.logits is not None:
            live = theirs.count > 0
            np.testing.assert_array_equal(ours.logits[live], theirs.logits[live])


def _poison(cache: TieredCache) -> TieredCache:
    layout = cache.layout
    unused = local_positions(layout, cache.aged) >= cache.length[:, None]

    def poison(x, where):
        nan = np.float32(np.nan).astype(jnp.dtype(layout.shape.dtype))
        nan = nan.view(x.dtype) if x.dtype == jnp.uint16 else nan
        return jnp.where(where.reshape(where.shape + (1,) * (x.ndim - where.ndim)), nan, x)

    cache = cache.replace(local=poison(cache.local, jnp.broadcast_to(unused, cache.local.shape[:3])))
    if cache.full is not None:
        cache = cache.replace(full=poison(cache.full, cache.full_window < 0))
    if cache.codes is not None:
        empty = (cache.code_window < 0)[..., None]
        nan = jnp.uint16(0x7FC0)
        params = jnp.array(0x7FC07FC0, jnp.uint32).astype(cache.codes.key_params.dtype)
        codes = cache.codes._replace(
            codes=tuple(jnp.where(empty, ~jnp.zeros((), x.dtype), x) for x in cache.codes.codes),
            key_params=jnp.where(empty, params, cache.codes.key_params),
            scalars=jnp.where(empty, nan, cache.codes.scalars),
        )
        cache = cache.replace(codes=codes)
    return cache


@pytest.mark.parametrize("name", CHUNKED)
def test_a_chunk_is_its_tokens_one_by_one(name):
    """A chat turn of up to W tokens gives what as many decode steps give: logits, cache and scores."""
    made = driver(name)
    per_event = made.policy.event_steps
    tokens = some_tokens(made.case, per_event, seed=5)
    size = made.case.prompt
    fed = np.array([per_event, per_event // 2, per_event - 1, 0], np.int32)
    chunk = tokens[:, size : size + per_event]
    _, cache = made.prefill(tokens[:, :size], lengths(made.case))

    by_token, single = cache, {}
    for i in range(per_event):
        logits, by_token = made.step(by_token, chunk[:, i : i + 1], (i < fed).astype(np.int32))
        for row in np.flatnonzero(fed == i + 1):
            single[row] = np.asarray(logits)[row]
    model = made.model

    def extend(cache, tokens, count):
        return steps.step(model.program, model.params, made.policy, cache, tokens, count)

    logits, at_once = jax.jit(extend, compiler_options=QUICK)(cache, chunk, fed)
    tolerance = 2e-4 if made.case.config.kv_dtype == "float32" else 1e-2
    for row, expected in single.items():
        np.testing.assert_allclose(np.asarray(logits)[row], expected, rtol=0, atol=tolerance)
    if made.case.config.kv_dtype == "float32":
        chex.assert_trees_all_close(at_once, by_token, rtol=1e-4, atol=tolerance)
    chex.assert_trees_all_equal(at_once.length, by_token.length)


@pytest.mark.parametrize("name", ["full", "ranked_decay"])
def test_jit_is_eager(name):
    """The same numbers without a compiler, to the rounding of float32."""
    compiled, plain = driver(name), make_driver(CASES[name], compiled=False)
    tokens = some_tokens(compiled.case, compiled.policy.event_steps)
    size = compiled.case.prompt
    _, cache = compiled.prefill(tokens[:, :size], lengths(compiled.case))
    results = []
    for made in (compiled, plain):
        logits, after = made.step(cache, jnp.asarray(tokens[:, size:][:, :1]), jnp.array([1, 1, 1, 0], jnp.int32))
        results.append((rows_of(logits, 0), rows_of(made.route(after), 0)))
    chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["full", "tuned"])
def test_a_second_prompt_compiles_nothing(name):
    """Written with chex, as the note to the user promises; `tests.recording` asserts it for every policy."""
    chex.clear_trace_counter()
    plain = make_driver(CASES[name], compiled=False)
    prefill, step, route = (
        jax.jit(chex.assert_max_traces(function, n=1)) for function in (plain.prefill, plain.step, plain.route)
    )
    for seed, length in ((0, [64, 5, 0, 1]), (1, [3, 63, 40, 2])):
        tokens = some_tokens(plain.case, 1, seed)
        _, cache = prefill(tokens[:, :64], np.array(length, np.int32))
        for _ in range(2):
            _, cache = step(cache, tokens[:, :1], np.ones(BATCH, np.int32))
        route(cache)
