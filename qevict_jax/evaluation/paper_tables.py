# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Results in the shapes of the paper's tables: 2 RULER, 3 and 6 LongBench, 8-10 GSM8K, 11-13 and 17 ablations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from qevict_jax.evaluation.gsm8k import FLEXIBLE, STRICT
from qevict_jax.evaluation.longbench.tasks import TASKS as LONGBENCH
from qevict_jax.evaluation.results import AGREEMENT, DIVERGENCE, CacheRow, Mean, Results
from qevict_jax.evaluation.tables import SHARES, Column, Row, Table, mean_of
from qevict_jax.questions import AWARE

NEEDLES, READING = "Needle-in-a-Haystack", "Question Answering"
RULER_COLUMNS = {
    "cwe": ("Aggregation", "CWE"),
    "fwe": ("Aggregation", "FWE"),
    "niah_multikey_1": (NEEDLES, "MK-1"),
    "niah_multikey_2": (NEEDLES, "MK-2"),
    "niah_multikey_3": (NEEDLES, "MK-3"),
    "niah_multiquery": (NEEDLES, "MQ"),
    "niah_multivalue": (NEEDLES, "MV"),
    "niah_single_1": (NEEDLES, "S-1"),
    "niah_single_2": (NEEDLES, "S-2"),
    "niah_single_3": (NEEDLES, "S-3"),
    "qa_1": (READING, "QA-1"),
    "qa_2": (READING, "QA-2"),
    "vt": ("Tracking", "VT"),
}
LONGBENCH_COLUMNS = {name: (row.family, row.title) for name, row in LONGBENCH.items()}
FIDELITY = "fidelity"
_SCORES = {
    STRICT: Column("exact match (strict)"),
    FLEXIBLE: Column("exact match (flexible)"),
    AGREEMENT: Column("token agreement with the full cache"),
    DIVERGENCE: Column("first token that differs", scale=1.0),
}
_ABLATIONS = {
    "windows": "window size W (Table 11)",
    "fraction": "share q of the quantized tier (Table 12)",
    "bits": "bits of a code (Table 13)",
    "ranking": "ranking function (Table 17)",
    "pool": "windows that share start scores",
}


def paper_tables(results: Sequence[Results]) -> list[Table]:
    """All tables of some results."""
    return [table for result in results for table in _SHAPES[result.benchmark](result)]


def families(result: Results) -> dict[str, list[str]]:
    """The families of a benchmark with the tasks of each that were run, in the order of the paper's tables.

    A family of RULER at each length is one of its own: scores at several lengths have no common mean.
    """
    columns = LONGBENCH_COLUMNS if result.benchmark == "longbench" else RULER_COLUMNS
    found: dict[str, list[str]] = {}
    for length in _lengths(result):
        suffix, place = ("", "") if length is None else (f"@{length}", f" at {length:,} tokens")
        for name, (family, _) in columns.items():
            if f"{name}{suffix}" in result.tasks:
                found.setdefault(f"{family}{place}", []).append(f"{name}{suffix}")
    return found


def _lengths(result: Results) -> list[int | None]:
    """The lengths that the tasks name, ascending; one None for tasks without."""
    named = (task.partition("@")[2] for task in result.tasks)
    return sorted({int(length) if length else None for length in named}, key=lambda length: length or 0)


def _ruler(result: Results) -> list[Table]:
    return [
        _task_table(result, f"RULER at {length:,} tokens, {subject(result)}", RULER_COLUMNS, f"@{length}")
        for length in _lengths(result)
    ]


def _longbench(result: Results) -> list[Table]:
    return [_task_table(result, f"LongBench, {subject(result)}", LONGBENCH_COLUMNS, "")]


def subject(result: Results) -> str:
    """What a table or plot is of, besides its benchmark: all that keeps runs apart."""
    protocol = "" if result.protocol == AWARE else result.protocol
    return ", ".join(filter(None, (result.model, result.dtype, result.format, protocol)))


def _task_table(result: Results, title: str, known: dict[str, tuple[str, str]], suffix: str) -> Table:
    """Methods down, tasks across, an average at the end."""
    tasks = [f"{name}{suffix}" for name in known if f"{name}{suffix}" in result.tasks]
    heads = [known[task.removesuffix(suffix) if suffix else task] for task in tasks]
    columns = tuple(Column(head, family) for family, head in heads)

    def row(cache: CacheRow) -> Row:
        cells = [result.scores.get((cache.label, task, "score")) for task in tasks]
        return _row(result, cache, tasks, (*cells, mean_of(cells)))

    return Table(title, (*columns, Column("Avg.")), _groups(result, row), note=_note(result))


def _groups(result: Results, row: Callable[[CacheRow], Row]) -> list[tuple[str, list[Row]]]:
    """The full cache, then methods at each budget, then quantization at its operating points with ours beside it."""
    groups = [("", [row(cache) for cache in result.caches if cache.full])]
    budgets = sorted({cache.budget for cache in result.caches if cache.budget is not None}, reverse=True)
    for budget in budgets:
        groups.append(
            (f"{_budget(budget)} KV-cache budget", [row(cache) for cache in result.caches if cache.budget == budget])
        )
    own = [cache for cache in result.caches if not cache.full and cache.budget is None]
    if any(cache.quantization for cache in own):
        own = [*(cache for cache in result.caches if cache.ours and cache.budget is not None), *own]
    if own:
        quantization = any(cache.quantization for cache in own)
        groups.append(("Quantization" if quantization else "Budget in bytes", [row(cache) for cache in own]))
    return [(name, rows) for name, rows in groups if rows]


def _budget(budget: float) -> str:
    return f"{100 * budget:.4g}%"


def _gsm8k(result: Results) -> list[Table]:
    """A table per score: (a) methods down and budgets across, (b) methods at their operating points.

    Memory without padding has a table like (a); rows of (b) tell it themselves.
    """
    tables = []
    for score, column in _SCORES.items():
        cells = {cache.label: result.scores.get((cache.label, "gsm8k", score)) for cache in result.caches}
        # without the full cache nothing agrees with it or differs from it
        if any(cells.values()):
            title = f"GSM8K, {column.title}, {subject(result)}"
            tables += _by_budget(result, title, column, cells) + _operating_points(result, title, column, cells)
    shares = {cache.label: result.unpadded.get((cache.label, "gsm8k")) for cache in result.caches}
    if any(shares.values()):
        column = Column(SHARES[1], higher_is_better=None)
        tables += _by_budget(result, f"GSM8K, {column.title}, {subject(result)}", column, shares)
    return tables


def _by_budget(result: Results, title: str, column: Column, cells: Mapping[str, Mean | None]) -> list[Table]:
    """Methods down and budgets across; the full cache stands at 100%."""
    full = [cache for cache in result.caches if cache.full and cells[cache.label]]
    compressed = [cache for cache in result.caches if cache.budget is not None]
    budgets = sorted({cache.budget for cache in compressed if cache.budget is not None} | {1.0 for _ in full})[::-1]
    at = {(cache.name, cache.budget): cells[cache.label] for cache in compressed}
    at |= {(cache.name, 1.0): cells[cache.label] for cache in full}
    methods = {cache.name: cache.full for cache in (*full, *compressed)}
    rows = [Row(name, None, tuple(at.get((name, x)) for x in budgets), not whole) for name, whole in methods.items()]
    across = tuple(replace(column, title=_budget(budget)) for budget in budgets)
    return [Table(f"{title}: by KV-cache budget", across, [("", rows)], note=_note(result))] if rows else []


def _operating_points(result: Results, title: str, column: Column, cells: Mapping[str, Mean | None]) -> list[Table]:
    """Methods without a budget beside the full cache and ours at each budget; none if all have one."""
    own = [cache for cache in result.caches if cache.budget is None and not cache.full]
    full = [cache for cache in result.caches if cache.full and cells[cache.label]]
    ours = [cache for cache in result.caches if cache.ours and cache.budget is not None]
    rows = [
        replace(_row(result, cache, ["gsm8k"], (cells[cache.label],)), name=cache.label)
        for cache in (*full, *own, *ours)
    ]
    return [Table(f"{title}: at operating points", (column,), [("", rows)], note=_note(result))] if own else []


def _ablation(result: Results) -> list[Table]:
    """Settings down; fidelity, tasks and an average over those of LongBench across."""
    known = RULER_COLUMNS | LONGBENCH_COLUMNS
    columns: list[Column] = []
    keys: list[tuple[str, str]] = []
    if FIDELITY in result.tasks:
        columns += [
            Column("KL (nats)", "Fidelity", scale=1.0, digits=4, higher_is_better=False),
            Column("top-1", "Fidelity"),
        ]
        keys += [(FIDELITY, "kl"), (FIDELITY, "top1")]
    for task in result.tasks:
        if task != FIDELITY:
            name, _, length = task.partition("@")
            columns.append(Column(f"{known[name][1]}{f' at {int(length):,}' if length else ''}", known[name][0]))
            keys.append((task, "score"))
    averaged = [task for task in result.tasks if task in LONGBENCH]
    if averaged:
        columns.append(Column("Avg.", "LongBench"))

    def row(cache: CacheRow) -> Row:
        cells = [result.scores.get((cache.label, *key)) for key in keys]
        if averaged:
            cells.append(mean_of([result.scores.get((cache.label, task, "score")) for task in averaged]))
        return _row(result, cache, result.tasks, tuple(cells))

    title = f"Ablation: {_ABLATIONS[result.what]}, {subject(result)}"
    return [Table(title, tuple(columns), _groups(result, row), first="Setting", note=_note(result))]


def _row(result: Results, cache: CacheRow, tasks: Sequence[str], cells: tuple[Mean | None, ...]) -> Row:
    """The row of a cache, with its mean memory over those of the tasks that it has begun."""

    def share(memory: Mapping[tuple[str, str], Mean]) -> float | None:
        cell = mean_of([memory[cache.label, task] for task in tasks if (cache.label, task) in memory])
        return None if cell is None else cell.value

    return Row(cache.name, share(result.memory), cells, not cache.full, share(result.unpadded))


def _note(result: Results) -> str:
    counts = sorted({mean.count for mean in result.scores.values()})
    samples = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}" if counts else "no"
    missing = f" **{result.incomplete:,} answers are still missing.**" if result.incomplete else ""
    return (
        f"{samples} samples a figure; bold and underlined are the best and second best of a group. KV memory is what "
        "the arrays really take, against a full cache of the same capacity; unpadded, against one of just the prompt "
        f"and its longest answer.{missing}"
    )


_SHAPES = {"ruler": _ruler, "longbench": _longbench, "gsm8k": _gsm8k, "ablation": _ablation}
