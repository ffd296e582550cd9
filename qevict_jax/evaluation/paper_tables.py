# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Results in the shapes of the paper's tables: 2 RULER, 3 and 6 LongBench, 8-10 GSM8K, 11-13 and 17 ablations."""

from collections.abc import Callable, Sequence

from qevict_jax.evaluation.gsm8k import FLEXIBLE, STRICT
from qevict_jax.evaluation.longbench.tasks import TASKS as LONGBENCH
from qevict_jax.evaluation.results import AGREEMENT, DIVERGENCE, CacheRow, Mean, Results
from qevict_jax.evaluation.tables import Column, Row, Table, mean_of
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
}


def paper_tables(results: Sequence[Results]) -> list[Table]:
    """All tables of some results."""
    return [table for result in results for table in _SHAPES[result.benchmark](result)]


def families(result: Results) -> dict[str, list[str]]:
    """The families of a benchmark with the tasks of each that were run, in the order of the paper's tables."""
    columns = LONGBENCH_COLUMNS if result.benchmark == "longbench" else RULER_COLUMNS
    found: dict[str, list[str]] = {}
    for name, (family, _) in columns.items():
        tasks = [task for task in result.tasks if task.partition("@")[0] == name]
        if tasks:
            found.setdefault(family, []).extend(tasks)
    return found


def _ruler(result: Results) -> list[Table]:
    lengths = sorted({int(task.partition("@")[2]) for task in result.tasks})
    return [
        _task_table(result, f"RULER at {length:,} tokens, {subject(result)}", RULER_COLUMNS, f"@{length}")
        for length in lengths
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
        return Row(cache.name, _memory(result, cache, tasks), (*cells, mean_of(cells)), not cache.full)

    return Table(title, (*columns, Column("Avg.")), _groups(result, row), note=_note(result))


def _groups(result: Results, row: Callable[[CacheRow], Row]) -> list[tuple[str, list[Row]]]:
    """The full cache, then methods at each budget, then quantization at its operating points with ours beside it."""
    groups = [("", [row(cache) for cache in result.caches if cache.full])]
    budgets = sorted({cache.budget for cache in result.caches if cache.budget is not None}, reverse=True)
    for budget in budgets:
        groups.append(
            (f"{100 * budget:.4g}% KV-cache budget", [row(cache) for cache in result.caches if cache.budget == budget])
        )
    own = [cache for cache in result.caches if not cache.full and cache.budget is None]
    if any(cache.quantization for cache in own):
        own = [*(cache for cache in result.caches if cache.ours and cache.budget is not None), *own]
    if own:
        quantization = any(cache.quantization for cache in own)
        groups.append(("Quantization" if quantization else "Budget in bytes", [row(cache) for cache in own]))
    return [(name, rows) for name, rows in groups if rows]


def _gsm8k(result: Results) -> list[Table]:
    """A table per score: (a) methods down and budgets across, (b) methods at their operating points."""
    budgets = sorted({cache.budget for cache in result.caches if cache.budget is not None}, reverse=True)
    methods = list(dict.fromkeys(cache.name for cache in result.caches if cache.budget is not None))
    label = {(cache.name, cache.budget): cache.label for cache in result.caches}
    tables = []
    for score, column in _SCORES.items():
        across = tuple(Column(f"{budget:.0%}", scale=column.scale) for budget in budgets)

        def at(name: str, budget: float, score: str = score) -> Mean | None:
            return result.scores.get((label.get((name, budget), ""), "gsm8k", score))

        full = [cache for cache in result.caches if cache.full and (cache.label, "gsm8k", score) in result.scores]
        rows = [
            Row(cache.name, None, (result.scores[cache.label, "gsm8k", score], *[None] * (len(across) - 1)), False)
            for cache in full
            if across
        ]
        rows += [Row(name, None, tuple(at(name, budget) for budget in budgets)) for name in methods]
        title = f"GSM8K, {column.title}, {subject(result)}"
        if rows:
            tables.append(Table(f"{title}: by KV-cache budget", across, [("", rows)], note=_note(result)))
        own = [cache for cache in result.caches if cache.budget is None and not cache.full]
        if own:
            points = [
                Row(
                    cache.name if cache.budget is None else cache.label,
                    _memory(result, cache, ["gsm8k"]),
                    (result.scores.get((cache.label, "gsm8k", score)),),
                )
                for cache in [*own, *(cache for cache in result.caches if cache.ours and cache.budget is not None)]
            ]
            tables.append(Table(f"{title}: at operating points", (column,), [("", points)], note=_note(result)))
    return tables


def _ablation(result: Results) -> list[Table]:
    """Settings down; fidelity and tasks across."""
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

    def row(cache: CacheRow) -> Row:
        cells = tuple(result.scores.get((cache.label, *key)) for key in keys)
        return Row(cache.name, _memory(result, cache, result.tasks), cells, not cache.full)

    title = f"Ablation: {_ABLATIONS[result.what]}, {subject(result)}"
    return [Table(title, tuple(columns), _groups(result, row), first="Setting", note=_note(result))]


def _memory(result: Results, cache: CacheRow, tasks: Sequence[str]) -> float | None:
    cell = mean_of([result.memory[cache.label, task] for task in tasks if (cache.label, task) in result.memory])
    return None if cell is None else cell.value


def _note(result: Results) -> str:
    counts = sorted({mean.count for mean in result.scores.values()})
    samples = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}" if counts else "no"
    missing = f" **{result.incomplete:,} answers are still missing.**" if result.incomplete else ""
    return (
        f"{samples} samples a figure; bold and underlined are the best and second best of a group. KV memory is what "
        f"the arrays really take, against a full cache of the same capacity.{missing}"
    )


_SHAPES = {"ruler": _ruler, "longbench": _longbench, "gsm8k": _gsm8k, "ablation": _ablation}
