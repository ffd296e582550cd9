# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The figures of a diagnosis, as PNG files: the colours of Okabe and Ito, which colour-blind readers tell apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from qevict_jax.diagnostics.comparison import Diagnosis
from qevict_jax.diagnostics.measure import LAGS, Measures
from qevict_jax.diagnostics.missed_mass import HORIZON
from qevict_jax.diagnostics.revival import THRESHOLDS, Revival
from qevict_jax.diagnostics.tier_mass import SHARED
from qevict_jax.policies.base import Tier

TIER_COLORS = {
    Tier.UNSEEN: "#ffffff",
    Tier.EVICTED: "#c4c4c4",
    Tier.FULL: "#0072b2",
    Tier.QUANTIZED: "#e69f00",
    Tier.RECENT: "#009e73",
    Tier.SINK: "#cc79a7",
}
TIER_NAMES = {
    Tier.UNSEEN: "not yet there",
    Tier.EVICTED: "evicted",
    Tier.FULL: "full precision",
    Tier.QUANTIZED: "quantized",
    Tier.RECENT: "recent",
    Tier.SINK: "sink",
}
_MOST_MARKERS = 64
_LABELLED = 4  # per cent that are wide enough for their number
_LINES = ("#d55e00", "#cc79a7", "#0072b2", "#009e73", "#56b4e9", "#000000", "#e69f00")
_STYLE: Any = {"font.size": 11, "axes.grid": True, "grid.alpha": 0.25, "axes.axisbelow": True}


def plot_missed_mass(diagnosis: Diagnosis, path: str | Path) -> None:
    """FMM over decoding, a solid line per condition; dashed, its quantized tier inaccessible."""
    with rc_context(_STYLE):
        lines = [x for x in diagnosis.conditions if not x.live and x.config.policy != "full"]
        figure, axes = _figure(7.2, 4.2 + 0.15 * len(lines))
        for index, (color, condition) in enumerate(zip(_LINES, lines, strict=False)):
            width = max(1.4, 3.0 - 0.8 * index)  # lines that coincide both show
            articles = [metrics[condition.name] for metrics in diagnosis.measures]
            label = f"{condition.name}: {condition.label}"
            _line(axes, articles, lambda x: x.missed, color=color, label=label, linewidth=width)
            if articles[0].missed_without_codes:
                label = f"{condition.name}, quantized tier inaccessible"
                _line(
                    axes,
                    articles,
                    lambda x: x.missed_without_codes,
                    color=color,
                    label=label,
                    linestyle="--",
                    linewidth=1.4,
                )
        axes.set(xlabel="decode step of the routing event", ylabel=f"Future Missed Mass, H={HORIZON} (%)")
        axes.set_xlim(0, diagnosis.steps)
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
        axes.set_title(_title(diagnosis), fontsize="medium")
        figure.savefig(path, dpi=150)


def _line(axes: Any, articles: list[Measures], values: Callable[[Measures], list], **style: Any) -> None:
    events, series = articles[0].events, over_decoding(articles, values)
    there = ~np.isnan(series)
    marker = "o" if len(events) <= _MOST_MARKERS else None
    axes.plot(events[there], 100 * series[there], marker=marker, markersize=3.5, **style)


def over_decoding(articles: list[Measures], values: Callable[[Measures], list]) -> Float[np.ndarray, "E"]:
    """A metric at each event, mean over articles, layers and heads; NaN where it has no value."""
    stacked = np.stack([np.stack(values(article)) for article in articles])  # [articles, L, E, heads]
    by_event = np.moveaxis(stacked, 2, 0).reshape(stacked.shape[2], -1)
    there = ~np.isnan(by_event)
    total = np.where(there, by_event, 0.0).sum(axis=1)
    return np.where(there.any(axis=1), total / np.maximum(there.sum(axis=1), 1), np.nan)


def plot_tier_mass(diagnosis: Diagnosis, names: tuple[str, ...], path: str | Path) -> None:
    """Where the full cache's attention mass lies under each condition, as stacked bars."""
    with rc_context(_STYLE | {"axes.grid": False}):
        figure, axes = _figure(7.2, 1.6 + 0.75 * len(names))
        labels = {x.name: x.label for x in diagnosis.conditions}
        places, words = [], []
        for group, (title, attribute) in enumerate(
            (("prompt and decoding", "shares"), ("decoding only", "decode_shares"))
        ):
            for row, name in enumerate(names):
                place = group * (len(names) + 0.6) + row
                places.append(place)
                words.append(f"{name}: {labels[name]}\n{title}")
                left = 0.0
                for tier in SHARED:
                    width = 100 * getattr(diagnosis.summaries[name], attribute)[tier].mean
                    axes.barh(place, width, left=left, color=TIER_COLORS[tier], edgecolor="white", height=0.8)
                    if width >= _LABELLED:
                        color = "white" if tier in (Tier.FULL, Tier.RECENT) else "black"
                        axes.text(left + width / 2, place, f"{width:.1f}", ha="center", va="center", color=color)
                    elif tier is SHARED[-1]:
                        axes.text(left + width + 0.7, place, f"{width:.1f}", ha="left", va="center")
                    left += width
        axes.set_yticks(places, words, fontsize="small")
        axes.invert_yaxis()
        axes.set(xlim=(0, 100), xlabel="share of the full cache's attention to windows and recent tokens (%)")
        axes.spines[["top", "right", "left"]].set_visible(False)
        figure.legend(
            handles=[Patch(color=TIER_COLORS[tier], label=TIER_NAMES[tier]) for tier in SHARED],
            loc="outside lower center",
            ncols=len(SHARED),
            fontsize="small",
            frameon=False,
        )
        axes.set_title(_title(diagnosis), fontsize="medium")
        figure.savefig(path, dpi=150)


def plot_placement(diagnosis: Diagnosis, name: str, layer: int, path: str | Path) -> None:
    """Windows by events, coloured by tier: one layer of one condition on the first article."""
    observed = diagnosis.observed[name]
    placement = observed.trace.placement[:, layer, 0]
    first = observed.sink + observed.window * np.arange((placement.shape[1] - observed.sink) // observed.window)
    with rc_context(_STYLE | {"axes.grid": False}):
        figure, axes = _figure(7.2, 5.4)
        tiers = [tier for tier in Tier if np.any(placement[:, first] == tier)]
        half = observed.trace.interval / 2
        axes.imshow(
            placement[:, first].T,
            cmap=ListedColormap([TIER_COLORS[tier] for tier in Tier]),
            vmin=min(Tier),
            vmax=max(Tier),
            aspect="auto",
            interpolation="nearest",
            extent=(-half, diagnosis.steps + half, observed.sink + len(first) * observed.window, observed.sink),
        )
        for edge in observed.sink + np.arange(1, len(first)) * observed.window:
            axes.axhline(edge, color="white", linewidth=min(0.3, 20 / len(first)))
        axes.axhline(diagnosis.prefill, color="black", linewidth=0.8, linestyle=":")
        axes.set(
            xlabel="decode step of the routing event", ylabel="position of the window (tokens; dotted: prompt ends)"
        )
        figure.legend(
            handles=[
                Patch(facecolor=TIER_COLORS[tier], edgecolor="#888888", linewidth=0.5, label=TIER_NAMES[tier])
                for tier in tiers
            ],
            loc="outside lower center",
            ncols=len(tiers),
            fontsize="small",
            frameon=False,
        )
        axes.set_title(f"{name}, layer {layer}, {diagnosis.articles[0].name}", fontsize="medium")
        figure.savefig(path, dpi=150)


def plot_revival(diagnosis: Diagnosis, names: tuple[str, ...], path: str | Path) -> None:
    """Global LIR over its threshold with 95% intervals, and transition probabilities over the lag."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        colors = dict(zip(names, _LINES[2:], strict=False))
        for name in names:
            summary = diagnosis.summaries[name]
            shift = 1.0 + 0.08 * names.index(name)  # intervals side by side
            style = {"color": colors[name]}
            _lir(left, summary.policy, shift, **style, marker="o", label=f"{name} policy")
            _lir(left, summary.oracle, shift + 0.04, **style, marker="s", linestyle="--", label=f"{name} oracle")
            for (a, b), marker in (((0, 1), "o"), ((1, 0), "v")):
                label = f"{name} policy, {'return' if b else 'departure'} $P_{{{a}{b}}}$"
                chances = [100 * summary.policy_lags[lag][a, b] for lag in LAGS]
                line = "-" if b else ":"
                right.plot(LAGS, chances, color=colors[name], marker=marker, linestyle=line, label=label)
        left.set(xlabel="events of inactivity m before a window counts", ylabel="Global LIR (%)", xscale="log")
        left.set_xticks(THRESHOLDS, [str(m) for m in THRESHOLDS])
        right.set(xlabel="lag (routing events)", ylabel="probability (%)", xscale="log")
        right.set_xticks(LAGS, [str(lag) for lag in LAGS])
        for axes in (left, right):
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.legend(fontsize="small")
        figure.suptitle(_title(diagnosis), fontsize="medium")
        figure.savefig(path, dpi=150)


def _lir(axes: Any, by_threshold: dict[int, Revival], shift: float, **style: Any) -> None:
    found = [one for one in by_threshold.values() if one.eligible]
    if found:
        rates = np.array([100 * one.rate for one in found])
        spread = [rates - [100 * one.low for one in found], [100 * one.high for one in found] - rates]
        at = [shift * one.threshold for one in found]
        axes.errorbar(at, rates, yerr=np.maximum(spread, 0), capsize=3, linewidth=1.5, **style)


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")  # without pyplot no display is needed
    return figure, figure.subplots()


def _title(diagnosis: Diagnosis) -> str:
    count = len(diagnosis.articles)
    return f"{diagnosis.prefill} + {diagnosis.steps} tokens, {count} article{'s' if count > 1 else ''}"
