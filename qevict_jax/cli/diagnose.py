# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict diagnose`: the paper's observations and its promotion experiment on any model and text."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qevict_jax.cli.benchmark import numbers
from qevict_jax.cli.diagnose_tables import observation_tables, promotion_table
from qevict_jax.cli.prompts import read_text
from qevict_jax.types import QEvictError

if TYPE_CHECKING:
    from qevict_jax.diagnostics.comparison import Diagnosis
    from qevict_jax.diagnostics.conditions import Condition


class Experiment(StrEnum):
    """What to run: Appendix I or Appendix K of the paper."""

    OBSERVATIONS = "observations"
    PROMOTION = "promotion"


_SIZES = {Experiment.OBSERVATIONS: (512, 256), Experiment.PROMOTION: (256, 1024)}  # the paper's

_FILE_WIDTH = 150  # columns of tables that go to a file or pipe


def run(
    model: Annotated[Path, typer.Option(help="Converted checkpoint.")],
    text: Annotated[list[Path], typer.Option(help="UTF-8 text to read; repeatable.")],
    experiment: Annotated[
        Experiment, typer.Option(help="R0 to R4 of Appendix I, or Appendix K: one-way, ranked, exact.")
    ] = Experiment.OBSERVATIONS,
    prefill: Annotated[
        int | None, typer.Option(help="Tokens read as a prompt; default 512, with promotion 256.", show_default=False)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Tokens fed after it; default 256, with promotion 1024.", show_default=False)
    ] = None,
    budget: Annotated[float, typer.Option(help="Fraction of the full cache, in the paper's accounting.")] = 0.2,
    offsets: Annotated[str, typer.Option(help="First token of each article; every text is read at each.")] = "0",
    kv_dtype: Annotated[str, typer.Option(help="Dtype of full-precision keys and values.")] = "bfloat16",
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'FIELD=VALUE,... ...'",
            help="Other caches at this budget, all combinations: 'policy=h2o,snapkv' or 'preset=tuned'; repeatable.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for report.json and the figures.")] = None,
    references: Annotated[
        Path | None, typer.Option(help="Directory in which full-cache runs are kept and found again.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer of the tier map; default the middle one.", show_default=False)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Compute in float32, bfloat16 or float16; default float32 on a CPU.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on the last line.")] = False,
) -> None:
    """Measures what a compressed cache discards and later misses, against the attention of the full cache."""
    starts = numbers("--offsets", offsets, int)
    contents = [(path.stem, read_text(path)) for path in text]
    if len({name for name, _ in contents}) < len(contents):
        raise QEvictError("two texts have one name; rename a file")
    prefill, steps = (given or default for given, default in zip((prefill, steps), _SIZES[experiment], strict=True))
    from qevict_jax.diagnostics.comparison import cut_article, diagnose
    from qevict_jax.diagnostics.report import to_json
    from qevict_jax.models import load_model

    conditions = _conditions(experiment, budget, kv_dtype, also or [])
    loaded = load_model(model, dtype)
    if loaded.tokenizer is None:
        raise QEvictError(f"{model} has no tokenizer")
    middle = loaded.config.layers // 2
    shown = middle if layer is None else layer
    if not 0 <= shown < loaded.config.layers:
        raise QEvictError(f"--layer {shown}: the model has layers 0 to {loaded.config.layers - 1}")
    articles = [
        cut_article(loaded, name, ids, start, prefill + steps + 1)
        for name, content in contents
        for ids in [loaded.tokenizer.encode(content, add_bos=False)]
        for start in starts
    ]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    found = diagnose(loaded, articles, conditions, prefill=prefill, reference_dir=references, progress=True)
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    if experiment is Experiment.PROMOTION:
        console.print(promotion_table(found))
    else:
        for table in observation_tables(found):
            console.print(table)
    report = to_json(found, model=str(model))
    if out is not None:
        (out / "report.json").write_text(json.dumps(report, indent=1))
        _draw(found, experiment, shown, out)
    if as_json:
        typer.echo(json.dumps(report))


def _conditions(experiment: Experiment, budget: float, kv_dtype: str, also: list[str]) -> "list[Condition]":
    from qevict_jax.config import CacheConfig
    from qevict_jax.diagnostics.conditions import condition_of, paper_conditions, promotion_conditions
    from qevict_jax.evaluation import parse_vary

    if experiment is Experiment.PROMOTION:
        if also:
            raise QEvictError("--also has no effect with --experiment promotion, which compares residencies")
        return promotion_conditions(budget, kv_dtype)
    base = CacheConfig.tuned(budget=budget, kv_dtype=kv_dtype)
    others = [config for words in also for config in parse_vary(words.split(), base)]
    lost = [f"kv_dtype={config.kv_dtype}" for config in others if config.kv_dtype != kv_dtype]
    if lost:
        raise QEvictError(f"{lost[0]} cannot be compared with a reference in {kv_dtype}; use --kv-dtype")
    more = [condition_of(config, index + 1) for index, config in enumerate(others)]
    return [*paper_conditions(budget, kv_dtype), *more]


def _draw(found: "Diagnosis", experiment: Experiment, layer: int, out: Path) -> None:
    from qevict_jax.diagnostics import plots

    plots.plot_missed_mass(found, out / "missed_mass.png")
    if experiment is Experiment.PROMOTION:
        plots.plot_revival(found, ("ranked",), out / "revival.png")  # the others never return
        for name in ("one-way", "ranked", "exact"):
            plots.plot_placement(found, name, layer, out / f"tiers_{name}.png")
        return
    plots.plot_tier_mass(found, ("R2", "R3"), out / "tier_mass.png")
    plots.plot_placement(found, "R3", layer, out / "tiers.png")
    plots.plot_revival(found, ("R3", "R4"), out / "revival.png")
