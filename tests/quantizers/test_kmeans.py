# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Exact one-dimensional k-means against brute force over all ways to cut the line."""

import itertools

import numpy as np
import pytest

from qevict_jax.quantizers.kmeans import kmeans


def loss(points, weights, centroids):
    return float((weights * (points[:, None] - centroids).__abs__().min(axis=1) ** 2).sum())


@pytest.mark.parametrize("seed", range(4))
def test_no_clustering_is_better(seed):
    random = np.random.default_rng(seed)
    points, weights = np.sort(random.normal(size=11)), random.uniform(0, 3, 11)
    weights[3] = 0.0
    found = kmeans(points, weights, (1, 2, 3, 4))
    for count, centroids in found.items():
        assert len(centroids) == count and (np.diff(centroids) > 0).all()
        best = np.inf
        for cuts in itertools.combinations(range(1, 11), count - 1):
            parts = np.split(np.arange(11), cuts)
            if any(weights[part].sum() == 0 for part in parts):
                continue
            centers = np.array([np.average(points[part], weights=weights[part]) for part in parts])
            best = min(
                best, sum((weights[p] * (points[p] - c) ** 2).sum() for p, c in zip(parts, centers, strict=True))
            )
        assert loss(points, weights, centroids) == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_weights_of_any_size():
    """Squared gradients spread over many orders of magnitude; sums of them lose the smallest."""
    random = np.random.default_rng(9)
    points, weights = np.sort(random.uniform(-1, 1, 400)), 10 ** random.uniform(-25, 0, 400)
    (centroids,) = kmeans(points, weights, (8,)).values()
    assert (np.diff(centroids) > 0).all()
    assert loss(points, weights, centroids) < 0.15 * loss(points, weights, np.linspace(-1, 1, 8))


def test_fewer_points_than_centroids_and_none():
    np.testing.assert_allclose(kmeans(np.array([-0.5, 0.25]), np.ones(2), (4,))[4], [-0.5, 0.25, 0.25, 0.25])
    np.testing.assert_allclose(kmeans(np.array([0.1]), np.zeros(1), (3,))[3], [-1, 0, 1])
