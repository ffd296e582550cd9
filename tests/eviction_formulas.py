# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The published formulas of token-level eviction in NumPy and float64, one layer of one prompt, as in `rivals`' papers.

Written from the equations, with sorts and loops, and not from our code. A prompt of n tokens has probabilities
``[H, n, n]``; N is the number of rows per head beside the protected newest tokens. Sets are bool ``[K, n]``.
"""

from typing import Any, NamedTuple

import numpy as np


class Layer(NamedTuple):
    """What a method may look at: probabilities ``[K, G, n, n]``, values ``[n, K, D]``, output ``[K, G, D, E]``."""

    weights: np.ndarray
    values: np.ndarray
    output: np.ndarray


def best(score: np.ndarray, count: int) -> np.ndarray:
    """Mask of the highest, the first of equals."""
    mask = np.zeros(score.shape, bool)
    mask[np.argsort(-score, kind="stable")[: max(0, count)]] = True
    return mask


def best_of_all(score: np.ndarray, count: int) -> np.ndarray:
    """The highest of all heads ``[K, n]``, the first token, then the first head, of equals."""
    return best(score.T.ravel(), count).reshape(score.T.shape).T


def pooled(x: np.ndarray, kernel: int, kind: str) -> np.ndarray:
    """Along the last axis; the neighbourhood of j is ``j - kernel//2 .. j + (kernel-1)//2``."""
    out = np.zeros_like(x)
    for j in range(x.shape[-1]):
        part = x[..., max(0, j - kernel // 2) : j + (kernel - 1) // 2 + 1]
        out[..., j] = part.sum(axis=-1) / kernel if kind == "avg" else part.max(axis=-1)
    return out


def value_norms(layer: Layer) -> np.ndarray:
    """``mean over g of ||v Wo_g||_1``, ``[K, n]``."""
    return np.abs(np.einsum("nkd,kgde->kgne", layer.values, layer.output)).sum(axis=-1).mean(axis=1)


def h2o(layer: Layer, rows: int, recent: int, options: Any) -> np.ndarray:
    """Column sums; the best of all but the newest."""
    score = layer.weights.sum(axis=2).mean(axis=1)
    old = max(0, score.shape[1] - recent)
    return np.stack([best(head[:old], rows) for head in score]) if old else np.zeros((len(score), 0), bool)


def snapkv_scores(layer: Layer, options: Any, group_first: bool) -> np.ndarray:
    """Of the tokens before the window, ``[K, n - W]``."""
    n = layer.weights.shape[-1]
    mass = layer.weights[:, :, -options.window :, : max(0, n - options.window)].mean(axis=2)
    if group_first:
        return pooled(mass.mean(axis=1), options.kernel, options.pool)
    return pooled(mass, options.kernel, options.pool).mean(axis=1)


def snapkv(layer: Layer, rows: int, recent: int, options: Any) -> np.ndarray:
    """The best of each head."""
    return np.stack([best(head, rows) for head in snapkv_scores(layer, options, group_first=False)])


def adakv(layer: Layer, rows: int, recent: int, options: Any) -> np.ndarray:
    """Every head's floor, then the best of all heads."""
    score = snapkv_scores(layer, options, group_first=True)
    safe = np.stack([best(head, int(options.floor * rows)) for head in score])
    return safe | best_of_all(np.where(safe, -np.inf, score), len(score) * rows - safe.sum())


def criticalkv(layer: Layer, rows: int, recent: int, options: Any) -> np.ndarray:
    """AdaKV's head budgets; half by score, the rest by score times value norm."""
    score = snapkv_scores(layer, options, group_first=True)
    budgets = adakv(layer, rows, recent, options).sum(axis=1)
    weighted = (score + options.eps) * value_norms(layer)[:, : score.shape[1]]
    sets = []
    for head, budget in enumerate(budgets):
        first = best(score[head], int(options.first_stage * budget))
        sets.append(first | best(np.where(first, -np.inf, weighted[head]), budget - first.sum()))
    return np.stack(sets)


def defensive_scores(layer: Layer, rows: int, options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores and the tokens that come first, ``[K, n - W]``."""
    n, window = layer.weights.shape[-1], options.window
    seen = layer.weights[:, :, -window:, : n - window]
    rescaled = pooled(seen, options.kernel, "avg")
    rescaled *= seen.sum(axis=-1, keepdims=True) / rescaled.sum(axis=-1, keepdims=True)
    worst = rescaled.max(axis=(1, 2))
    worst = np.maximum(worst, worst.mean(axis=-1, keepdims=True))
    norms = value_norms(layer)
    score = worst * (norms / norms.sum(axis=0))[:, : n - window]
    mean = seen.mean(axis=(1, 2))
    wanted = options.first_mass - layer.weights[:, :, -window:, n - window :].sum(axis=-1).mean()
    first = np.zeros(mean.shape, bool)
    for head, mass in enumerate(mean / mean.sum(axis=-1, keepdims=True)):
        reached = 0.0
        for j in np.argsort(-mass, kind="stable")[:rows]:
            reached += mass[j]
            if reached >= wanted:
                break
            first[head, j] = True
    return score, first


def defensivekv(layer: Layer, rows: int, recent: int, options: Any) -> np.ndarray:
    """Those that come first, then the best of all heads."""
    score, first = defensive_scores(layer, rows, options)
    return first | best_of_all(np.where(first, -np.inf, score), len(score) * rows - first.sum())


def layer_defensivekv(layers: list[Layer], rows: int, most: int, options: Any) -> list[np.ndarray]:
    """Of the best ``most`` of every layer, those that come first, then the best of all layers."""
    scores, firsts = zip(*(defensive_scores(layer, rows, options) for layer in layers), strict=True)
    limited = []
    for score, first in zip(scores, firsts, strict=True):
        allowed = first | best_of_all(np.where(first, -np.inf, score), most - first.sum())
        limited.append(np.where(allowed & ~first, score, -np.inf))
    flat = np.concatenate([score.T.ravel() for score in limited])
    count = len(layers) * scores[0].shape[0] * rows - sum(first.sum() for first in firsts)
    chosen = best(flat, min(count, np.isfinite(flat).sum())).reshape(len(layers), -1, scores[0].shape[0])
    return [first | chosen[i].T for i, first in enumerate(firsts)]
