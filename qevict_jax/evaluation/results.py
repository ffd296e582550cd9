# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Finished lines of runs, gathered into means per cache and task."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from qevict_jax.config import POLICY_FIELDS, fields_read
from qevict_jax.evaluation.runs import line_key, read_configuration, read_lines
from qevict_jax.questions import AWARE
from qevict_jax.types import QEvictError

AGREEMENT, DIVERGENCE = "agreement", "divergence"


@dataclass(frozen=True)
class Mean:
    """A mean over samples: how many there were, and the standard error of the mean (0 with one sample)."""

    value: float
    count: int
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        """The mean of some values."""
        count = len(values)
        mean = math.fsum(values) / count
        variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1) if count > 1 else 0.0
        return cls(mean, count, math.sqrt(variance / count))


@dataclass(frozen=True)
class CacheRow:
    """One cache of a run: its label, its name without the budget, its budget (None if it has none), its settings."""

    label: str
    name: str
    budget: float | None
    config: dict[str, Any]

    @classmethod
    def of(cls, record: dict[str, Any]) -> "CacheRow":
        """The row of an entry of run.json, without settings that its policy does not read: versions add some."""
        config = record["config"]
        read = fields_read(config["policy"]) if config["policy"] in POLICY_FIELDS else config
        return cls(record["label"], record["name"], config["budget"], {name: config.get(name) for name in read})

    @property
    def full(self) -> bool:
        """The uncompressed reference."""
        return self.config["policy"] == "full"

    @property
    def quantization(self) -> bool:
        """Compared at its own operating point, since it reads no budget (paper, Appendix B.3)."""
        return not self.full and "budget" not in POLICY_FIELDS.get(self.config["policy"], ("budget",))

    @property
    def ours(self) -> bool:
        """QEvict, which is compared with both kinds."""
        return self.config["policy"] == "qevict"


@dataclass(frozen=True)
class Group:
    """What the runs of one table have in common.

    Attributes:
        benchmark: "ruler", "longbench", "gsm8k" or "ablation".
        model: as it was named.
        what: what an ablation varies, else "".
        protocol: "question-aware" or "question-agnostic".
        format: how prompts are written where a benchmark has several ways (a row of `gsm8k.FORMATS`), else "".
        dtype: of computation, "" in a run that does not tell.
    """

    benchmark: str
    model: str
    what: str
    protocol: str
    format: str
    dtype: str


@dataclass(frozen=True)
class Results(Group):
    """One benchmark on one model, from one directory or several.

    Attributes:
        caches: in the order of the runs.
        tasks: in the order of the runs.
        scores: by label, task and name of the score. `AGREEMENT` with the full cache (share of its tokens at the same
            place) and `DIVERGENCE` (index of the first other token) are added wherever both answered.
        memory: mean real bytes against a full cache of the same capacity, by label and task.
        unpadded: the same against a full cache of just the prompt and its longest answer.
        incomplete: lines that are still missing.
    """

    caches: tuple[CacheRow, ...]
    tasks: tuple[str, ...]
    scores: dict[tuple[str, str, str], Mean]
    memory: dict[tuple[str, str], Mean]
    unpadded: dict[tuple[str, str], Mean]
    incomplete: int


def gather(directories: Sequence[Path]) -> list[Results]:
    """Results of run directories; runs that ask the same of one model become one, whatever caches they measured.

    Raises:
        QEvictError: no run, a damaged one, or two that gave a sample different prompts or a cache different settings.
    """
    groups: dict[Group, list[_StoredRun]] = defaultdict(list)
    for directory in directories:
        run = _StoredRun(directory, read_configuration(directory))
        groups[run.group].append(run)
    return [_results(group, runs) for group, runs in groups.items()]


class _StoredRun(NamedTuple):
    directory: Path
    configuration: dict[str, Any]

    @property
    def group(self) -> Group:
        absent = {"what": "", "protocol": AWARE, "format": "", "dtype": ""}  # runs of earlier versions lack some
        stored = absent | self.configuration
        return Group(**{field.name: stored[field.name] for field in fields(Group)})


def _results(group: Group, runs: Sequence[_StoredRun]) -> Results:
    caches: dict[str, CacheRow] = {}
    lines: dict[tuple, dict] = {}
    asked: dict[tuple[str, int], tuple[str | None, _StoredRun]] = {}
    expected = 0
    for run in runs:
        for record in run.configuration["caches"]:
            row = CacheRow.of(record)
            other = caches.setdefault(row.label, row)
            if other != row:
                differ = ", ".join(name for name, value in other.config.items() if row.config.get(name) != value)
                raise QEvictError(
                    f"{run.directory}: {row.label!r} has other settings than in another run given: {differ}"
                )
        expected += run.configuration["expected"]
        for line in read_lines(run.directory):
            # of whatever cache: figures in one table must come from the same prompts
            prompt = line.get("prompt_sha256")
            first, asker = asked.setdefault((line["task"], line["index"]), (prompt, run))
            if first != prompt:
                raise _other_prompts(line, asker, run)
            if lines.setdefault(line_key(line), line) is not line:
                expected -= 1
    full = {row.label for row in caches.values() if row.full}
    reference = {(task, index): line for (label, task, index), line in lines.items() if label in full}
    scores: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    memory: dict[tuple[str, str], list[float]] = defaultdict(list)
    unpadded: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (label, task, index), line in lines.items():
        named = dict(line["scores"])
        if label not in full and (task, index) in reference and "tokens" in line:
            named |= _against(reference[task, index]["tokens"], line["tokens"])
        for name, value in named.items():
            scores[label, task, name].append(value)
        memory[label, task].append(line["kv_ratio"])
        if "own_ratio" in line:
            unpadded[label, task].append(line["own_ratio"])
    return Results(
        **vars(group),
        caches=tuple(caches.values()),
        tasks=tuple(dict.fromkeys(line["task"] for line in lines.values())),
        scores=_means(scores),
        memory=_means(memory),
        unpadded=_means(unpadded),
        incomplete=expected - len(lines),
    )


def _means(values: Mapping[Any, Sequence[float]]) -> dict[Any, Mean]:
    return {key: Mean.of(of_key) for key, of_key in values.items()}


def _other_prompts(line: dict, one: _StoredRun, other: _StoredRun) -> QEvictError:
    ours, theirs = one.configuration, other.configuration
    # what the caches were, or what follows from the prompts, is no reason
    names = (ours.keys() | theirs.keys()) - {"caches", "expected", "environments", "prompts_sha256"}
    differing = sorted(name for name in names if ours.get(name) != theirs.get(name))
    why = f" ({', '.join(differing)} differ)" if differing else ""
    return QEvictError(
        f"{one.directory} and {other.directory} gave sample {line['index']} of {line['task']} different prompts{why}, "
        "so their caches cannot stand in one table: report each alone, or run one again with the settings of the other"
    )


def _against(reference: Sequence[int], tokens: Sequence[int]) -> dict[str, float]:
    same = [a == b for a, b in zip(reference, tokens, strict=False)]
    first = same.index(False) if False in same else len(same)
    return {AGREEMENT: sum(same) / len(reference), DIVERGENCE: float(first)}
