# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Plots of evaluations, as PNG files."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.figure import Figure

from qevict_jax.evaluation.fidelity import FidelityResult
from qevict_jax.evaluation.sweep import describe
from qevict_jax.types import QEvictError

_MOST_BANDS = 3


def plot_fidelity(results: Sequence[FidelityResult], path: str | Path, *, title: str = "") -> None:
    """KL against real bytes, a line per configuration over its budgets; a PNG.

    With few lines a band shows the lowest and the highest offset.

    Raises:
        QEvictError: if no configuration fitted its budget.
    """
    lines: dict[str, list[FidelityResult]] = defaultdict(list)
    for result in results:
        if result.plan is not None:
            lines[describe(result.config)].append(result)
    if not lines:
        raise QEvictError("there is nothing to plot: no configuration fits its budget")
    figure = Figure(figsize=(8, 5), layout="constrained")  # without pyplot no display is needed
    axes = figure.subplots()
    colors, markers = colormaps["tab10"].colors, "os^Dv"  # pyright: ignore[reportAttributeAccessIssue]
    for i, (name, line) in enumerate(lines.items()):
        line = sorted(line, key=lambda result: result.kv_bytes)
        ratios = [100 * result.ratio_allocated for result in line]
        color, marker = colors[i % len(colors)], markers[i // len(colors) % len(markers)]
        axes.plot(ratios, [result.mean_kl for result in line], marker=marker, color=color, label=name)
        if len(lines) <= _MOST_BANDS:
            lows, highs = [min(result.kl) for result in line], [max(result.kl) for result in line]
            axes.fill_between(ratios, lows, highs, alpha=0.12, color=color, linewidth=0)
    axes.set(xlabel="KV cache, % of the full cache's bytes (real arrays)", ylabel="mean KL(full || compressed), nats")
    axes.set_yscale("log")
    axes.set_title(title)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
