# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""KL to the full cache over real bytes, one line per configuration."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from qevict_jax.evaluation import FidelityResult


def draw(file: Path, title: str, labelled: list[tuple[str, FidelityResult]]) -> None:
    """Writes a PNG; results that did not run are left out."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    lines: dict[str, list[FidelityResult]] = {}
    for label, result in labelled:
        if result.error is None:
            lines.setdefault(label, []).append(result)
    for label, results in lines.items():
        results = sorted(results, key=lambda result: result.ratio_allocated)
        axes.errorbar(
            [result.ratio_allocated for result in results],
            [result.mean_kl for result in results],
            yerr=[result.spread_kl for result in results],
            marker="o",
            capsize=3,
            label=label,
        )
    axes.set(title=title, xlabel="bytes of the cache, share of the full cache", ylabel="KL to the full cache (nats)")
    axes.set_yscale("log", nonpositive="clip")
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(alpha=0.3)
    if lines:
        axes.legend()
    figure.savefig(file, dpi=150, format="png")
