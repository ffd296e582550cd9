# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Score against memory: the non-dominated operating points of each task family (paper, Appendix D)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qevict_jax.evaluation.paper_tables import families, subject
from qevict_jax.evaluation.results import CacheRow, Results
from qevict_jax.evaluation.tables import mean_of
from qevict_jax.types import QEvictError


@dataclass(frozen=True)
class Point:
    """One cache: the share of the full cache's bytes that it takes, and its score in percent."""

    name: str
    memory: float
    score: float


def dominates(a: Point, b: Point) -> bool:
    """Eq. 9: no more memory and no lower score, and one of the two better."""
    return a.memory <= b.memory and a.score >= b.score and (a.memory < b.memory or a.score > b.score)


def frontier(points: Sequence[Point]) -> list[Point]:
    """The points that no other dominates, by memory."""
    kept = [point for point in points if not any(dominates(other, point) for other in points)]
    return sorted(kept, key=lambda point: (point.memory, point.score))


def plot_pareto(result: Results, path: str | Path) -> None:
    """A panel per task family and kind of baseline; the full cache is a dashed line. A PNG.

    Raises:
        QEvictError: no family has a finished cache beside the full one.
    """
    kinds: dict[str, Callable[[CacheRow], bool]] = {
        "eviction": lambda cache: not cache.quantization,
        "quantization": lambda cache: cache.quantization or cache.ours,
    }
    if not any(cache.quantization for cache in result.caches):
        del kinds["quantization"]
    panels = [
        (family, kind, points, full)
        for family, tasks in families(result).items()
        for kind, belongs in kinds.items()
        for points, full in [_points(result, tasks, belongs)]
        if points
    ]
    if not panels:
        raise QEvictError("there is nothing to plot: no cache but the full one has finished a family of tasks")
    columns = len(kinds) if len(kinds) > 1 else min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6 * columns, 3.6 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    methods = list(dict.fromkeys(cache.name for cache in result.caches if not cache.full))
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (family, kind, points, full) in zip(grid.flat, panels, strict=False):
        _panel(axes, points, full, methods)
        axes.set_title(f"{family}: {kind}" if len(kinds) > 1 else family)
    handles = {label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize="small")
    figure.suptitle(f"{result.benchmark}, {subject(result)}")
    figure.savefig(path, dpi=130)


def _points(
    result: Results, tasks: Sequence[str], belongs: Callable[[CacheRow], bool]
) -> tuple[list[Point], float | None]:
    """Means over the tasks of a family, of every cache that finished them; and the score of the full cache."""
    points, full = [], None
    for cache in result.caches:
        score = mean_of([result.scores.get((cache.label, task, "score")) for task in tasks])
        memory = mean_of([result.memory.get((cache.label, task)) for task in tasks])
        if score is None or memory is None:
            continue
        if cache.full:
            full = 100 * score.value
        elif belongs(cache):
            points.append(Point(cache.name, memory.value, 100 * score.value))
    return points, full


def _panel(axes: Axes, points: Sequence[Point], full: float | None, methods: Sequence[str]) -> None:
    shades = colormaps["tab20"].colors  # pyright: ignore[reportAttributeAccessIssue]
    colors, markers = shades[::2] + shades[1::2], "os^DvP*X"  # strong ones before pale ones
    for i, name in enumerate(methods):
        line = sorted((point for point in points if point.name == name), key=lambda point: point.memory)
        if line:
            axes.plot(
                [100 * point.memory for point in line],
                [point.score for point in line],
                marker=markers[i % len(markers)],
                color=colors[i % len(colors)],
                linewidth=0.8,
                alpha=0.9,
                label=name,
            )
    best = frontier(points)
    axes.step(
        [100 * point.memory for point in best],
        [point.score for point in best],
        where="post",
        color="black",
        linewidth=2.5,
        alpha=0.25,
        label="Pareto frontier",
    )
    if full is not None:
        axes.axhline(full, linestyle="--", color="gray", label="full cache")
    axes.set(xlabel="KV memory, % of the full cache", ylabel="score, %")
    axes.grid(True, alpha=0.25)
