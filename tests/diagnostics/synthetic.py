# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Diagnoses without any model: random attention, and tiers that change hands at random or as a test says."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qevict_jax.diagnostics.comparison import Article, Diagnosis
from qevict_jax.diagnostics.measure import Observed, measure
from qevict_jax.diagnostics.reference import Reference, ReferenceSettings
from qevict_jax.diagnostics.summary import summarize
from qevict_jax.diagnostics.trace import PolicyTrace
from qevict_jax.policies.base import Tier

LAYERS, HEADS, SINK, WINDOW, RECENT, PREFILL, STEPS = 2, 4, 2, 4, 4, 34, 24
SIZE = PREFILL + STEPS
WINDOWS = (SIZE - SINK) // WINDOW


@dataclass(frozen=True)
class SyntheticReference(Reference):
    """A reference in memory."""

    step_mass: np.ndarray

    def mass(self, layer: int) -> np.ndarray:
        return self.step_mass[layer]


def synthetic_reference(seed: int = 0, every: int = 1) -> SyntheticReference:
    """Random probabilities of every step, causal."""
    random = np.random.default_rng(seed)
    weights = random.exponential(size=(LAYERS, SIZE, HEADS, SIZE)) * np.tril(np.ones((SIZE, SIZE)))[None, :, None]
    weights /= weights.sum(axis=-1, keepdims=True)
    steps = weights[:, PREFILL:].reshape(LAYERS, STEPS // every, every, HEADS, SIZE).sum(axis=2)
    settings = ReferenceSettings("m", "t", PREFILL, STEPS, every, "float32")
    of_prompt = weights[:, :PREFILL].sum(axis=1).astype(np.float32)
    return SyntheticReference(Path(), settings, of_prompt, np.ones(STEPS), steps.astype(np.float32))


def synthetic_trace(seed: int, tiers=(Tier.FULL, Tier.QUANTIZED, Tier.EVICTED), mass=None) -> PolicyTrace:
    """A random tier of ``tiers`` for every window that has left the recent region."""
    random = np.random.default_rng(seed)
    events = STEPS // WINDOW + 1
    placement = np.full((events, LAYERS, 1, SIZE), Tier.UNSEEN, np.int8)
    for event in range(events):
        length = PREFILL + event * WINDOW
        aged = (length - SINK - RECENT) // WINDOW
        chosen = random.choice(np.array(tiers, np.int8), (LAYERS, aged))
        placement[event, :, 0, :length] = Tier.RECENT
        placement[event, :, 0, :SINK] = Tier.SINK
        placement[event, :, 0, SINK : SINK + aged * WINDOW] = np.repeat(chosen, WINDOW, axis=1)
    if mass is None:
        mass = random.exponential(size=(events - 1, LAYERS, WINDOWS)).astype(np.float32)
    return PolicyTrace(placement, WINDOW, mass, np.ones(STEPS))


def synthetic_diagnosis(conditions, seeds=(0, 1)) -> Diagnosis:
    """Two articles under every condition."""
    measures, first = [], {}
    for seed in seeds:
        observed = {
            one.name: Observed(synthetic_trace(10 * seed + index), SINK, WINDOW, 3)
            for index, one in enumerate(conditions)
        }
        first = first or observed
        measures.append(measure(synthetic_reference(seed), observed))
    summaries = {one.name: summarize([x[one.name] for x in measures]) for one in conditions}
    articles = [Article(f"article_{seed}", np.arange(SIZE + 1, dtype=np.int32)) for seed in seeds]
    return Diagnosis(list(conditions), articles, PREFILL, STEPS, measures, first, summaries)
