# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A recording next to what should have happened: logits and masses in float64, tiers and scores from algorithm 1.

Every step starts from what the recorded cache really holds, so that errors do not add up; scores and decisions are the
reference's own from the prompt on.
"""

import copy
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from qevict_jax.cache import TierLayout
from tests.algorithm1 import Algorithm1
from tests.cache_contents import context
from tests.float64_model import Float64Model, LayerTrace
from tests.recording import BATCH, Moment, driver, recording
from tests.tier_contents import ring_tokens, window_positions


class Expected(NamedTuple):
    """What one active row should look like after one moment.

    Attributes:
        moment: the recorded moment.
        row: the row.
        logits: ``[V]``, None for an event.
        traces: of each layer, None for an event.
        sims: algorithm 1 of each layer after the moment; empty for a cache without windows.
    """

    moment: Moment
    row: int
    logits: np.ndarray | None
    traces: list[LayerTrace] | None
    sims: list[Algorithm1]


@cache
def expectations(name: str) -> list[Expected]:
    """All rows with a prompt through a recording."""
    return [expected for row in range(BATCH) for expected in _row(name, row) if recording(name)[0].count[row]]


def _row(name: str, row: int) -> Iterator[Expected]:
    moments, made = recording(name), driver(name)
    model, config, plan = Float64Model(made.model), made.case.config, made.policy.plan
    layers = range(model.config.layers)
    sims = []
    if isinstance(plan.layout, TierLayout):
        sims = [
            Algorithm1(plan.full_windows, plan.quant_windows, config.residency == "ranked", config.ranking)
            for _ in layers
        ]
    prompt = moments[0].tokens[row, : moments[0].count[row]]
    if not len(prompt):
        return
    logits, traces = model.run(prompt)
    for layer, sim in enumerate(sims):
        mass = start_mass(traces[layer].weights, config, plan.layout)
        aged = max(0, (len(prompt) - config.sink - config.recent) // config.window)
        norms = {w: key_score(traces[layer].keys[window_positions(plan.layout, w)]) for w in range(aged)}
        sim.start(mass, aged, norms)
    yield Expected(moments[0], row, logits[-1], traces, copy.deepcopy(sims))

    for before, moment in zip(moments, moments[1:], strict=False):
        cache, length = before.cache, int(before.cache.length[row])
        logits = traces = None
        if moment.kind == "step" and moment.count[row]:
            found = [context(cache, layer, row, model, config.kv_dtype) for layer in layers]
            if not found[0][0].own:
                found = [context(moment.cache, layer, row, model, config.kv_dtype) for layer in layers]
            fed = moment.tokens[row, : moment.count[row]]
            logits, traces = model.run(fed, length, [c for c, _ in found], config.kv_dtype)
            logits = logits[-1]
            for layer, sim in enumerate(sims):
                new = (length - config.sink) // config.window if length >= config.sink else -1
                owner = np.append(found[layer][1], new)
                received = traces[layer].weights.mean(axis=0).sum(axis=0)
                sim.observe({int(w): received[owner == w].sum() for w in np.unique(owner) if w >= 0})
        elif moment.kind == "route":
            for layer, sim in enumerate(sims):
                arrives = (length - config.sink - config.recent) // config.window > sim.aged
                norm = {}
                if arrives and config.ranking == "key_norm":
                    norm[sim.aged] = key_score(
                        ring_tokens(cache, layer, row, window_positions(plan.layout, sim.aged))[:, :, 0]
                    )
                sim.event(arrives, norm)
        else:
            continue
        yield Expected(moment, row, logits, traces, copy.deepcopy(sims))


def start_mass(weights: np.ndarray, config, layout) -> dict[int, float]:
    """Mass of every window of a prompt from the probabilities ``[H, n, n]``."""
    by_query = weights.mean(axis=0)
    n = len(by_query)
    if config.last_queries is not None:
        by_query = by_query[-config.last_queries :]
    by_token = by_query.sum(axis=0)
    if config.prefill_scores == "mean":
        by_token = by_token / (n - np.arange(n))
    windows = (np.arange(n) - layout.sink) // layout.window
    count = max(0, windows[-1] + 1)
    by_window = np.array([by_token[windows == w].sum() for w in range(count)])
    around = np.arange(config.prefill_pool) - config.prefill_pool // 2
    return {w: sum(by_window[i] for i in w + around if 0 <= i < count) / len(around) for w in range(count)}


def key_score(keys: np.ndarray) -> float:
    """Minus the mean norm of keys ``[W, K, D]``."""
    return -np.linalg.norm(keys, axis=-1).mean()
