# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A diagnosis in the terminal, shaped like the paper's tables 14 to 16 and 18."""

import math
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from qevict_jax.diagnostics.comparison import Diagnosis
    from qevict_jax.diagnostics.revival import Revival
    from qevict_jax.diagnostics.summary import Summary

_RULES = (  # metric of `promotion.METRICS`, title, as a percentage
    ("missed", "FMM, lower is better", True),
    ("agreement", "QSA", False),
    ("ratio", "R_Q", True),
    ("agreement_decoding", "QSA, decoding only", False),
    ("ratio_decoding", "R_Q, decoding only", True),
    ("churn", "churn", True),
)


def observation_tables(found: "Diagnosis") -> list[Table]:
    """Memory and loss, FMM and churn, tier mass, score agreement, Global LIR."""
    return [_losses(found), _masses(found), _agreement(found), _revival(found)]


def _losses(found: "Diagnosis") -> Table:
    count = len(found.articles)
    title = f"Observation I: {found.prefill} + {found.steps} tokens, {count} article{'s' if count > 1 else ''}"
    columns = ("holds", "real bytes", "FMM", "no codes", "churn", "moves", "ΔNLL")
    table = _table(title, columns)
    full = next((found.summaries[x.name].nll for x in found.conditions if x.config.policy == "full"), math.nan)
    for condition in found.conditions:
        summary, plan = found.summaries[condition.name], found.observed[condition.name].trace.plan
        holds, real = "every token", "100.0%"
        if condition.tokens:
            holds, real = f"{found.observed[condition.name].oracle_windows} tokens", "-"
        elif plan is not None:
            holds = f"{plan.full_windows}+{plan.quant_windows} windows"
            if not plan.full_windows + plan.quant_windows:
                holds = ", ".join(f"{number} {word}" for word, number in plan.capacities)
            real = f"{found.observed[condition.name].trace.kv_bytes / plan.full_kv_bytes:.1%}"
        moves = "/".join(f"{getattr(summary, kind).mean:.2f}" for kind in ("promotions", "demotions", "evictions"))
        table.add_row(
            condition.name,
            condition.label,
            holds,
            real,
            _percent(summary.missed.mean),
            _percent(summary.missed_without_codes.mean),
            "-" if condition.config.policy == "full" else _number(summary.churn.mean),
            "-" if condition.config.policy == "full" else moves,
            _number(summary.nll - full, "+.4f"),
        )
    traces = max(x.missed.traces for x in found.summaries.values())
    table.caption = (
        f"FMM and churn: means over {traces} traces, a layer of an article each. no codes: FMM with the quantized tier "
        "inaccessible. moves: tokens promoted/demoted/evicted per event and layer. ΔNLL in nats per token. "
        "R1 to R4 are planned in the paper's accounting; real bytes are those of the arrays."
    )
    return table


def _masses(found: "Diagnosis") -> Table:
    from qevict_jax.diagnostics.tier_mass import SHARED

    names = [tier.name.lower() for tier in SHARED]
    table = _table("Observation II: attention mass by tier, prompt and decoding / decoding alone", names)
    for condition in found.conditions:
        summary = found.summaries[condition.name]
        shares = [
            f"{_percent(summary.shares[tier].mean)} / {_percent(summary.decode_shares[tier].mean)}" for tier in SHARED
        ]
        table.add_row(condition.name, condition.label, *shares)
    table.caption = "Sinks belong to no window and are left out."
    return table


def _agreement(found: "Diagnosis") -> Table:
    from qevict_jax.diagnostics.measure import SPANS

    table = _table("Observation II: scores of quantized windows against the full cache's, QSA and R_Q", SPANS)
    for condition in found.conditions:
        summary = found.summaries[condition.name]
        if summary.agreement["cumulative"].traces:
            table.add_row(
                condition.name,
                condition.label,
                *(f"{_number(summary.agreement[x].mean)}  {_percent(summary.ratio[x].mean)}" for x in SPANS),
            )
    table.caption = (
        "cumulative: since the first query of the prompt, which both runs share; decoding: since the first decode "
        "step; interval: from one event to the next."
    )
    return table


def _revival(found: "Diagnosis") -> Table:
    from qevict_jax.diagnostics.measure import LAGS
    from qevict_jax.diagnostics.revival import THRESHOLDS

    first, last = LAGS[0], LAGS[-1]
    columns = [f"m={m}" for m in THRESHOLDS] + ["return", f"P01({first},{last})", f"P10({first},{last})"]
    table = _table("Observation III: Global LIR, with 95% intervals", columns)
    for condition in found.conditions:
        if condition.config.policy == "full" or condition.live:
            continue
        summary = found.summaries[condition.name]
        _revival_row(table, condition.name, "oracle", summary.oracle, summary, oracle=True)
        _revival_row(table, condition.name, "policy", summary.policy, summary, oracle=False)
    table.caption = (
        "return: median events from m=3 events of inactivity to the return. P01, P10: chance that an inactive "
        f"(active) window is active (inactive) {first} and {last} events later."
    )
    return table


def _revival_row(
    table: Table, name: str, kind: str, by_threshold: "dict[int, Revival]", summary: "Summary", *, oracle: bool
) -> None:
    from qevict_jax.diagnostics.measure import LAGS

    if not any(one.eligible for one in by_threshold.values()):
        return
    lags = summary.oracle_lags if oracle else summary.policy_lags
    cells = [f"{_percent(one.rate)}\n{_percent(one.low)}..{_percent(one.high)}" for one in by_threshold.values()]
    chances = [f"{_percent(lags[LAGS[0]][a, b])} {_percent(lags[LAGS[-1]][a, b])}" for a, b in ((0, 1), (1, 0))]
    table.add_row(name, kind, *cells, _number(by_threshold[3].median_return, ".0f"), *chances)


def promotion_table(found: "Diagnosis") -> Table:
    """Table 18, with a column per condition and its paired difference to the first."""
    from qevict_jax.diagnostics.promotion import compare_promotion

    comparisons = compare_promotion(found)
    first, *others = comparisons
    count = len(found.articles)
    table = Table(
        title=f"Promotion: {found.prefill} + {found.steps} tokens, {count} article{'s' if count > 1 else ''}, paired",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("metric", no_wrap=True)
    for name in comparisons:
        table.add_column(name, justify="right")
    for name in others:
        table.add_column(f"{name} - {first}", justify="right")
    for key, title, percentage in _RULES:
        show = _percent if percentage else _number
        row = [show(comparisons[name].values[key].mean) for name in comparisons]
        for name in others:
            found_difference = comparisons[name].differences[key]
            points = [
                (f"{100 * x:+.2f}" if percentage else f"{x:+.4f}")
                for x in (found_difference.mean, found_difference.low, found_difference.high)
            ]
            row.append(f"{points[0]} [{points[1]}..{points[2]}]" + (" pp" if percentage else ""))
        table.add_row(title, *row)
    table.add_row("Global LIR, m=3", *(_percent(x.lir) for x in comparisons.values()))
    table.add_row("Q to F transitions", *(str(x.transitions) for x in comparisons.values()))
    table.add_row("NLL (nats)", *(f"{x.nll:.4f}" for x in comparisons.values()))
    traces = comparisons[first].values["missed"].traces
    table.caption = f"Differences: mean over {traces} traces with 95% bootstrap intervals over them."
    return table


def _table(title: str, columns: "list[str] | tuple[str, ...]") -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("cache")
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.2f}%"


def _number(value: float, form: str = ".4f") -> str:
    return "-" if math.isnan(value) else format(value, form)
