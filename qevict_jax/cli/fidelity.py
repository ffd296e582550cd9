# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict eval fidelity`: how far a compressed cache moves a model's predictions, per budget and configuration."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from qevict_jax.cli.benchmark import numbers
from qevict_jax.cli.options import cache_config, sweep_options
from qevict_jax.cli.prompts import read_text
from qevict_jax.cli.report import size
from qevict_jax.config import POLICY_FIELDS, CacheConfig, idle_fields
from qevict_jax.types import QEvictError

if TYPE_CHECKING:
    from qevict_jax.evaluation import FidelityResult

# what remains of the options when a preset is varied
_BESIDE_PRESETS = {"preset", "kv_dtype", "accounting"}


@sweep_options
def run(
    model: Annotated[Path, typer.Option(help="Converted checkpoint.")],
    text: Annotated[Path, typer.Option(help="UTF-8 text to read.")],
    more: Annotated[list[str] | None, typer.Argument(metavar="[FIELD=VALUE,...]", help="More of --vary.")] = None,
    prefill: Annotated[int, typer.Option(help="Tokens read as a prompt.")] = 2048,
    steps: Annotated[int, typer.Option(help="Next-token distributions compared.")] = 192,
    budgets: Annotated[str, typer.Option(help="Fractions of the full cache.")] = "0.2,0.1,0.05",
    offsets: Annotated[str, typer.Option(help="Tokens of the text to skip; several are averaged.")] = "0",
    question_tokens: Annotated[
        int,
        typer.Option(
            help="Question-agnostic: compress without the last so many tokens of the prompt, then feed them. "
            "0 compresses with the whole prompt in view."
        ),
    ] = 0,
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
    configs = sweep([*(vary or []), *(more or [])], settings, numbers("--budgets", budgets, float))
    starts = numbers("--offsets", offsets, int)
    content = read_text(text)
    from qevict_jax.evaluation import fidelity, plot_fidelity, to_json
    from qevict_jax.models import load_model

    loaded = load_model(model, dtype)
    if loaded.tokenizer is None:
        raise QEvictError(f"{model} has no tokenizer")
    tokens = loaded.tokenizer.encode(content, add_bos=False)
    facts = {"prefill": prefill, "steps": steps, "offsets": starts}
    results = fidelity(loaded, tokens, configs, **facts, question=question_tokens, progress=True)
    title = f"{text.name}: {prefill} + {steps} tokens, offsets {', '.join(map(str, starts))}"
    if question_tokens:
        title += f", compressed {question_tokens} tokens before the prompt ends"
    Console().print(_table(title, results))
    if png is not None:
        plot_fidelity(results, png, title=title)
    if as_json:
        typer.echo(json.dumps(to_json(results, model=str(model), text=content, **facts)))


def sweep(vary: Sequence[str], settings: dict[str, Any], budgets: Sequence[float]) -> list[CacheConfig]:
    """Every combination of what varies, at every budget; once for a policy that has none.

    Raises:
        QEvictError: an unknown field or value, or an option that what varies would replace.
    """
    from qevict_jax.evaluation import parse_vary

    names = {word.partition("=")[0] for word in vary}
    lost = names & settings.keys() - {"preset"} | (settings.keys() - _BESIDE_PRESETS if "preset" in names else set())
    if lost:
        raise QEvictError(f"no effect beside --vary {' '.join(vary)}: {', '.join(sorted(lost))}")
    if "budget" in names or "budget_bytes" in names:
        raise QEvictError("budgets vary with --budgets 0.2,0.1")
    policy = settings.get("policy")
    shares = [None] if policy in POLICY_FIELDS and idle_fields(policy, ["budget"]) else budgets
    by_budget = [parse_vary(vary, cache_config(**settings, budget=budget)) for budget in shares]
    return list(dict.fromkeys(config for combination in zip(*by_budget, strict=True) for config in combination))


def _table(title: str, results: "list[FidelityResult]") -> Table:
    from qevict_jax.evaluation import describe

    table = Table(title=title, title_justify="left", caption_justify="left")
    for name in ("cache", "budget", "bytes", "of full", "KL (nats)", "top-1", "ΔNLL"):
        table.add_column(name, justify="left" if name == "cache" else "right", no_wrap=name != "cache")
    for result in results:
        name, budget = describe(result.config), "-" if result.config.budget is None else f"{result.config.budget:.4g}"
        if result.plan is None:
            table.add_row(name, budget, "-", "-", "does not fit", "-", "-")
            continue
        spread = f" ±{result.spread_kl:.4f}" if len(result.kl) > 1 else ""
        table.add_row(
            name,
            budget,
            size(result.kv_bytes),
            f"{result.ratio_allocated:.1%}",
            f"{result.mean_kl:.4f}{spread}",
            f"{np.mean(result.top1):.1%}",
            f"{np.mean(result.nll_difference):+.4f}",
        )
    if any(len(result.kl) > 1 for result in results):
        table.caption = "± is the standard deviation over offsets"
    return table
