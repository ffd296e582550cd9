# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict report DIR...`: tables and plots of finished runs."""

import re
from pathlib import Path
from typing import Annotated

import typer


def run(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Directories of runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Directory for the tables as Markdown and CSV and for the plots.")
    ] = None,
) -> None:
    """Shows runs as the paper does: its tables in Markdown, and with --out CSV files and Pareto plots too."""
    from qevict_jax.evaluation.paper_tables import families, paper_tables
    from qevict_jax.evaluation.pareto import plot_pareto
    from qevict_jax.evaluation.results import gather
    from qevict_jax.types import QEvictError

    results = gather(list(dict.fromkeys(directories)))
    tables = paper_tables(results)
    text = "\n".join(table.markdown() for table in tables)
    typer.echo(text)
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    written = [out / "report.md"]
    written[0].write_text(text, encoding="utf-8")
    for number, table in enumerate(tables, 1):
        written.append(out / f"{number:02d}-{_file_name(table.title)}.csv")
        written[-1].write_text(table.csv(), encoding="utf-8")
    for number, result in enumerate(results, 1):
        if result.benchmark in ("ruler", "longbench") and families(result):
            path = out / f"pareto-{number:02d}-{result.benchmark}.png"
            try:
                plot_pareto(result, path)
            except QEvictError as error:
                typer.echo(f"no {path.name}: {error}", err=True)
            else:
                written.append(path)
    for path in written:
        typer.echo(f"wrote {path}", err=True)


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:80]
