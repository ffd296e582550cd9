# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval fidelity`: how far a compressed cache moves a model's predictions, per budget and configuration."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from qevict_jax.cli.options import sweep_options
from qevict_jax.cli.prompts import read_text
from qevict_jax.cli.report import size
from qevict_jax.cli.sweep import numbers, sweep
from qevict_jax.types import QEvictError

if TYPE_CHECKING:
    from qevict_jax.evaluation import FidelityResult


@sweep_options
def run(
    model: Annotated[Path, typer.Option(help="Converted checkpoint.")],
    text: Annotated[Path, typer.Option(help="UTF-8 text to read.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="[FIELD=VALUE,...]", help="More of --vary.")] = None,
    prefill: Annotated[int, typer.Option(help="Tokens read as a prompt.")] = 2048,
    steps: Annotated[int, typer.Option(help="Next-token distributions compared.")] = 192,
    budgets: Annotated[str, typer.Option(help="Fractions of the full cache.")] = "0.2,0.1,0.05",
    offsets: Annotated[str, typer.Option(help="Tokens of the text to skip; several are averaged.")] = "0",
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE,...", help="Compare all combinations of these settings; presets too."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Compute in float32, bfloat16 or float16; default float32 on a CPU.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as JSON on the last line.")] = False,
    png: Annotated[Path | None, typer.Option(help="Draw KL over bytes into this file.")] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Feeds a known text through each cache and compares its predictions with the full cache's."""
    if png is not None and not png.absolute().parent.is_dir():
        raise QEvictError(f"--png {png}: there is no directory {png.parent}")
    rows = [
        (label, config(budget))
        for label, config in sweep(settings, [*(vary or []), *(more or [])])
        for budget in numbers(budgets, float, "budgets")
    ]
    starts = numbers(offsets, int, "offsets")
    content = read_text(text)
    from qevict_jax.evaluation import fidelity
    from qevict_jax.models import load_model

    loaded = load_model(model, dtype)
    if loaded.tokenizer is None:
        raise QEvictError(f"{model} has no tokenizer")
    results = fidelity(
        loaded,
        loaded.tokenizer.encode(content, add_bos=False),
        [config for _, config in rows],
        prefill=prefill,
        steps=steps,
        offsets=starts,
        progress=True,
    )
    labelled = [(label, result) for (label, _), result in zip(rows, results, strict=True)]
    title = f"{text.name}: {prefill} + {steps} tokens, {len(starts)} offset{'s' * (len(starts) > 1)}"
    Console().print(_table(title, labelled))
    if png is not None:
        from qevict_jax.cli.fidelity_chart import draw

        draw(png, title, labelled)
    if as_json:
        document = {"model": str(model), "text": str(text), "prefill": prefill, "steps": steps, "offsets": starts}
        typer.echo(json.dumps(document | {"results": [_entry(label, result) for label, result in labelled]}))


def _table(title: str, labelled: "list[tuple[str, FidelityResult]]") -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for name in ("cache", "budget", "bytes", "of full", "KL (nats)", "top-1", "ΔNLL"):
        table.add_column(name, justify="left" if name == "cache" else "right", no_wrap=name != "cache")
    for label, result in labelled:
        budget = f"{result.config.budget:.4g}"
        if result.error is not None:
            table.add_row(label, budget, "-", "-", "does not fit", "-", "-")
            continue
        spread = f" ±{result.spread_kl:.4f}" if len(result.kl) > 1 else ""
        table.add_row(
            label,
            budget,
            size(result.kv_bytes),
            f"{result.ratio_allocated:.1%}",
            f"{result.mean_kl:.4f}{spread}",
            f"{np.mean(result.top1):.1%}",
            f"{np.mean(result.nll_difference):+.4f}",
        )
    table.caption = "± is the standard deviation over offsets" if any(len(r.kl) > 1 for _, r in labelled) else None
    return table


def _entry(label: str, result: "FidelityResult") -> dict[str, Any]:
    figures = {key: value for key, value in asdict(result).items() if key != "plan"}
    if result.error is None:
        figures |= {"mean_kl": result.mean_kl, "spread_kl": result.spread_kl, "ratio": result.ratio_allocated}
    return {"label": label, **figures}
