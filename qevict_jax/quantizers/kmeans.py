# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Weighted k-means of numbers on a line, exactly: in one dimension clusters are intervals, so dynamic programming finds
the best ones (H. Wang and M. Song, "Ckmeans.1d.dp", The R Journal 3/2, 2011). NumPy; it runs once per layer.
"""

import numpy as np


def kmeans(points: np.ndarray, weights: np.ndarray, counts: tuple[int, ...]) -> dict[int, np.ndarray]:
    """Centroids that minimize ``sum_i w_i (x_i - nearest centroid)^2``, for several numbers of them at once.

    Args:
        points: ``[m]`` in ascending order.
        weights: ``[m]``, not negative; zero weights take no part.
        counts: numbers of centroids.

    Returns:
        For each count its centroids, ascending float64 ``[count]``. With fewer distinct points than that, the largest
        is repeated. With no weight at all, the centroids are spread evenly over -1 .. 1.
    """
    points, weights = (np.asarray(x, np.float64)[weights > 0] for x in (points, weights))
    if not len(points):
        return {count: np.linspace(-1, 1, count) for count in counts}
    cost = _interval_costs(points, weights)
    size, most = len(points), max(counts)
    best = cost[0]  # best[j]: points 0..j in the clusters so far
    first = np.zeros((most, size), np.int64)  # first[k, j]: where the last of k + 1 clusters over 0..j begins
    for cluster in range(1, most):
        # points 0..i-1 in the clusters so far, i..j in a new one
        total = np.concatenate([[0.0], best[:-1]])[:, None] + cost
        first[cluster] = total.argmin(axis=0)
        best = total[first[cluster], np.arange(size)]
    return {count: _centroids(points, weights, first[:count], count) for count in counts}


def _interval_costs(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """``cost[i, j]``: weighted squared distance of points i..j to their mean; infinite where i > j."""
    mass, first, second = (np.concatenate([[0.0], np.cumsum(weights * points**power)]) for power in (0, 1, 2))
    m, a, b = (x[None, 1:] - x[:-1, None] for x in (mass, first, second))
    upper = np.triu(np.ones((len(points),) * 2, bool))
    cost = b - np.divide(a * a, m, out=np.zeros_like(a), where=upper & (m > 0))  # sums lose what is tiny
    return np.where(upper, np.maximum(cost, 0.0), np.inf)


def _centroids(points: np.ndarray, weights: np.ndarray, first: np.ndarray, count: int) -> np.ndarray:
    found, last = [], len(points) - 1
    for cluster in range(count - 1, -1, -1):
        start = first[cluster, last]
        found.append(np.average(points[start : last + 1], weights=weights[start : last + 1]))
        last = start - 1
        if last < 0:
            break
    found = np.sort(found)
    return np.concatenate([found, np.full(count - len(found), found[-1])])
