# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Token-level eviction while generating: scores, events and storage, from what each recorded cache really holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from qevict_jax.policies import policy_options
from qevict_jax.policies.base import Tier
from tests import eviction_formulas as formulas
from tests.cache_contents import context
from tests.float64_model import Float64Model
from tests.policies.reference_run import expectations
from tests.policy_table import CASES, ROWS
from tests.recording import BATCH, counts, driver, lengths, play, recording, some_tokens
from tests.row_contents import held_rows, ring_range
from tests.tier_contents import numbers

LAYERS = 2
WORST = ("defensivekv", "layer_defensivekv")  # refreshed by a maximum; the others by a sum


def rows_with_prompt(name):
    return [row for row in range(BATCH) if recording(name)[0].count[row]]


def steps_of(name, kind):
    """(moment before, moment) of every step or event."""
    moments = recording(name)
    return [(a, b) for a, b in zip(moments, moments[1:], strict=False) if b.kind == kind]


def scores_of(cache, layer, row):
    """(head, position) -> score, in rows and ring."""
    found = {key: cache.score[row, at] for key, at in held_rows(cache, layer, row).items()}
    for position in ring_range(cache, row):
        stored = cache.ring_score[layer, row, position % cache.layout.ring]
        found |= {(head, position): stored[head] for head in range(len(stored))}
    return found


@pytest.mark.parametrize("name", ROWS)
def test_every_step_refreshes_the_scores(name):
    """By the mean over the group of its attention, added, or by the maximum."""
    config, model = CASES[name].config, Float64Model(driver(name).model)
    kv_heads = model.config.kv_heads
    unit = getattr(policy_options(config), "window", 1)
    traces = {(id(e.moment), e.row): e.traces for e in expectations(name) if e.traces is not None}
    checked = 0
    for before, after in steps_of(name, "step"):
        for row in range(BATCH):
            if not after.count[row]:
                continue
            for layer in range(LAYERS):
                _, at = context(before.cache, layer, row, model, config.kv_dtype)
                weights = traces[id(after), row][layer].weights[:, 0].reshape(kv_heads, -1, len(at) + 1)
                at = [*at, int(before.cache.length[row])]
                old, new = scores_of(before.cache, layer, row), scores_of(after.cache, layer, row)
                assert set(new) == set(old) | {(head, at[-1]) for head in range(kv_heads)}
                for (head, position), score in new.items():
                    seen = weights[head, :, at.index(position)]
                    last = old.get((head, position), 0.0)
                    wanted = max(last, seen.max()) if config.policy in WORST else last + seen.mean() / unit
                    assert score == pytest.approx(wanted, rel=1e-4, abs=2e-5)
                    checked += seen.max() > 0.01
    assert checked > 100


def choose(policy, options, score, weight, head, capacity, kv_heads):
    """The rule of every method among candidates, in NumPy."""
    mask = np.zeros(len(score), bool)
    if policy in ("h2o", "snapkv"):
        for k in range(kv_heads):
            of_head = np.flatnonzero(head == k)
            mask[of_head[formulas.best(score[of_head], capacity // kv_heads)]] = True
        return mask
    if policy in WORST:
        return formulas.best(score * weight, capacity)
    for k in range(kv_heads):  # every head's floor, then the best of all
        of_head = np.flatnonzero(head == k)
        mask[of_head[formulas.best(score[of_head], int(options.floor * (capacity // kv_heads)))]] = True
    mask |= formulas.best(np.where(mask, -np.inf, score), min(capacity, len(score)) - mask.sum())
    if policy == "adakv":
        return mask
    kept = np.zeros(len(score), bool)
    for k in range(kv_heads):
        of_head = np.flatnonzero(head == k)
        budget = mask[of_head].sum()
        first = formulas.best(score[of_head], int(options.first_stage * budget))
        weighted = np.where(first, -np.inf, (score[of_head] + options.eps) * weight[of_head])
        kept[of_head[first | formulas.best(weighted, budget - first.sum())]] = True
    return kept


@pytest.mark.parametrize("name", ROWS)
def test_events_keep_the_best(name):
    """Of the rows and of what leaves the ring; survivors stay where they are, arrivals are what the ring held."""
    config, made = CASES[name].config, driver(name)
    options, layout = policy_options(config), made.policy.plan.layout
    kv_heads = layout.shape.kv_heads
    kernels = np.float64(nnx.to_pure_dict(made.model.params)["blocks"]["attn"]["o"]["kernel"])
    evicted = 0
    for before, after in steps_of(name, "route"):
        old, new = before.cache, after.cache
        for row in rows_with_prompt(name):
            leaving = range(int(old.start[row]), int(new.start[row]))
            assert len(leaving) == np.clip(old.length[row] - layout.recent - old.start[row], 0, 8)
            for layer in range(LAYERS):
                rows, after_rows = held_rows(old, layer, row), held_rows(new, layer, row)
                in_order = sorted(rows, key=rows.get)
                arrivals = [(head, position) for position in leaving for head in range(kv_heads)]
                candidates = in_order + arrivals
                scores = scores_of(old, layer, row)
                fading = getattr(options, "decay", 1.0) ** len(leaving)
                score = np.array([scores[key] * fading for key in candidates], np.float32)
                weight = None
                if old.weight is not None:
                    stored = [numbers(old.ring[layer, row, p % layout.ring], config.kv_dtype) for p in leaving]
                    values = np.reshape(stored, (len(leaving), kv_heads, 2, layout.shape.head_dim))[:, :, 1]
                    output = kernels[layer].reshape(kv_heads, -1, values.shape[-1], kernels.shape[-1])
                    fresh = formulas.value_norms(formulas.Layer(np.zeros(0), values, output)).T
                    if config.policy in WORST:
                        fresh = fresh / fresh.sum(axis=1, keepdims=True)
                    weight = np.array([old.weight[row, rows[key]] for key in in_order] + list(fresh.ravel()))
                capacity = layout.rows if new.begin is None else int(np.diff(new.begin[row])[layer])
                head = np.array([head for head, _ in candidates], int)
                keep = choose(config.policy, options, score, weight, head, capacity, kv_heads)
                wanted = {key for key, stays in zip(candidates, keep, strict=True) if stays}
                assert set(after_rows) == wanted, (row, layer)
                evicted += len(candidates) - len(wanted)
                for key in wanted & set(rows):
                    assert after_rows[key] == rows[key]
                    np.testing.assert_array_equal(new.rows[row, rows[key]], old.rows[row, rows[key]])
                for k, position in wanted - set(rows):
                    stored = old.ring[layer, row, position % layout.ring].reshape(kv_heads, -1)[k]
                    np.testing.assert_array_equal(new.rows[row, after_rows[k, position]], stored)
    assert evicted > 20


@pytest.mark.parametrize("name", ROWS)
def test_each_token_is_in_the_ring_or_a_row_or_evicted_for_good(name):
    policy, gone = driver(name).policy, {}
    placement = jax.jit(policy.placement)
    for moment in recording(name):
        cache, layout = moment.cache, policy.plan.layout
        tiers = np.asarray(placement(jax.tree.map(jnp.asarray, cache)))
        for row in rows_with_prompt(name):
            start, length = int(cache.start[row]), int(cache.length[row])
            assert length - start <= layout.ring and start >= length - layout.recent - 8
            if cache.begin is not None:
                sizes = np.diff(cache.begin[row])
                assert cache.begin[row, 0] == 0 and cache.begin[row, -1] <= LAYERS * layout.rows
                assert np.all((sizes >= 0) & (sizes <= layout.most)) and sizes.sum() >= 0.9 * LAYERS * layout.rows
            for layer in range(LAYERS):
                held = held_rows(cache, layer, row)
                assert len(held) <= layout.most
                for head in range(layout.shape.kv_heads):
                    kept = {position for k, position in held if k == head}
                    assert all(position < start for position in kept)
                    evicted = set(range(start)) - kept
                    before = gone.setdefault((row, layer, head), set())
                    assert before <= evicted, "a token came back"
                    before |= evicted
                    wanted = np.full(CASES[name].total_len, Tier.UNSEEN)
                    wanted[:length] = Tier.RECENT
                    wanted[:start] = Tier.EVICTED
                    wanted[list(kept)] = Tier.FULL
                    np.testing.assert_array_equal(tiers[layer, row, head], wanted)
    assert any(gone.values())


@pytest.mark.parametrize("name", [*ROWS, "streaming_llm"])
def test_unused_rows_do_not_leak(name):
    """NaN in every row that holds no token changes no bit of a logit, and no token's place."""
    made = driver(name)
    per_event = made.policy.event_steps
    count = counts(made.case, per_event)
    poisoned = play(made, some_tokens(made.case, per_event), lengths(made.case), count, change=_poison)
    for ours, theirs in zip(poisoned, recording(name), strict=True):
        if name != "streaming_llm":
            np.testing.assert_array_equal(ours.cache.position, theirs.cache.position)
        if ours.logits is not None:
            live = theirs.count > 0
            np.testing.assert_array_equal(ours.logits[live], theirs.logits[live])


def _poison(cache):
    dtype = cache.layout.shape.dtype
    nan = np.float32(np.nan).astype(jnp.dtype(dtype))
    length = cache.length[:, None]
    if not hasattr(cache, "rows"):
        rows = jnp.arange(cache.tokens.shape[2])
        return cache.replace(tokens=_where(rows >= length, nan, cache.tokens))
    ring, start = cache.layout.ring, cache.start[:, None]
    at = start + (jnp.arange(ring) - start) % ring
    empty = cache.position < 0
    return cache.replace(
        ring=_where(at >= length, nan, cache.ring),
        rows=jnp.where(empty[..., None], nan.view(cache.rows.dtype), cache.rows),
        score=jnp.where(empty, jnp.nan, cache.score),
        weight=None if cache.weight is None else jnp.where(empty, jnp.nan, cache.weight),
    )


def _where(unused, nan, stack):
    return jnp.where(unused[None, ..., None], nan.view(stack.dtype), stack)
