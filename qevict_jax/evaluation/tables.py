# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Tables in Markdown and CSV: rows in groups, the best of a group in bold, the second best underlined."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from qevict_jax.evaluation.results import Mean


@dataclass(frozen=True)
class Column:
    """A column of figures.

    Attributes:
        title: its head.
        family: what stands above it and its neighbours, or "".
        scale: figures are shown times this.
        digits: after the point.
        higher_is_better: None where nothing is better than anything.
    """

    title: str
    family: str = ""
    scale: float = 100.0
    digits: int = 1
    higher_is_better: bool | None = True


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: of the method.
        memory: KV memory as a fraction of a full cache of the same capacity, None if it has no single one.
        cells: figures, None for none.
        competes: whether its figures can be the best.
        unpadded: KV memory as a fraction of a full cache of just prompt and answer, None if that is not known.
    """

    name: str
    memory: float | None
    cells: tuple[Mean | None, ...]
    competes: bool = True
    unpadded: float | None = None

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """Both fractions, in the order of `SHARES`."""
        return self.memory, self.unpadded


SHARES = ("KV memory", "KV memory, unpadded")


@dataclass(frozen=True)
class Table:
    """A table of groups of rows."""

    title: str
    columns: tuple[Column, ...]
    groups: list[tuple[str, list[Row]]] = field(default_factory=list)
    first: str = "Method"
    note: str = ""

    def markdown(self) -> str:
        """GitHub Markdown."""
        every = [row.shares for _, rows in self.groups for row in rows]
        known = [at for at in range(len(SHARES)) if any(shares[at] is not None for shares in every)]
        heads = [self.first, *(SHARES[at] for at in known), *map(_head, self.columns)]
        lines = [f"### {self.title}", "", _line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
        for name, rows in self.groups:
            if name:
                lines.append(_line([f"*{name}*", *[""] * (len(heads) - 1)]))
            compared = [[row.cells[i] if row.competes else None for row in rows] for i in range(len(self.columns))]
            ranks = [_ranks(column, cells) for column, cells in zip(self.columns, compared, strict=True)]
            for place, row in enumerate(rows):
                memory = [_percent(row.shares[at]) for at in known]
                marked = zip(self.columns, row.cells, ranks, strict=True)
                lines.append(_line([row.name, *memory, *(_marked(c, cell, rank[place]) for c, cell, rank in marked)]))
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])

    def csv(self) -> str:
        """Plain figures: both shares of memory; mean, standard error and number of samples of each column."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads = (f"{column.title}{what}" for column in self.columns for what in ("", " standard error", " samples"))
        writer.writerow(["group", self.first, *SHARES, *heads])
        for name, rows in self.groups:
            for row in rows:
                memory = ("" if share is None else f"{share:.6f}" for share in row.shares)
                writer.writerow([name, row.name, *memory, *self._plain(row)])
        return out.getvalue()

    def _plain(self, row: Row) -> Iterator[str]:
        for column, cell in zip(self.columns, row.cells, strict=True):
            if cell is None:
                yield from ("", "", "")
            else:
                yield from (f"{column.scale * cell.value:.6g}", f"{column.scale * cell.error:.3g}", str(cell.count))


def mean_of(cells: Sequence[Mean | None]) -> Mean | None:
    """The mean over tasks, each with the same weight; None unless all are there."""
    there = [cell for cell in cells if cell is not None]
    if not there or len(there) < len(cells):
        return None
    error = sum(cell.error**2 for cell in there) ** 0.5 / len(there)
    return Mean(sum(cell.value for cell in there) / len(there), sum(cell.count for cell in there), error)


def _head(column: Column) -> str:
    return f"{column.family}<br>{column.title}" if column.family else column.title


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _shown(column: Column, cell: Mean) -> str:
    return f"{column.scale * cell.value:.{column.digits}f}"


def _ranks(column: Column, cells: Sequence[Mean | None]) -> list[int | None]:
    """0 for the best distinct figure as shown, 1 for the second, else None; nothing is best of one, or of equals."""
    shown = [None if cell is None else float(_shown(column, cell)) for cell in cells]
    distinct = sorted({value for value in shown if value is not None}, reverse=bool(column.higher_is_better))
    if column.higher_is_better is None or len(distinct) < 2:
        return [None] * len(cells)
    return [None if value is None or value not in distinct[:2] else distinct.index(value) for value in shown]


def _marked(column: Column, cell: Mean | None, rank: int | None) -> str:
    if cell is None:
        return ""
    text = _shown(column, cell)
    return {None: text, 0: f"**{text}**", 1: f"<u>{text}</u>"}[rank]
