# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The table of RULER's thirteen tasks with their published parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qevict_jax.evaluation.ruler.aggregation import CommonWords, FrequentWords
from qevict_jax.evaluation.ruler.draft import Task
from qevict_jax.evaluation.ruler.needles import Needles
from qevict_jax.evaluation.ruler.scoring import match_all, match_part
from qevict_jax.evaluation.ruler.sources import Readings, read_hotpot, read_squad
from qevict_jax.evaluation.ruler.tracking import VariableTracking


@dataclass(frozen=True)
class Sources:
    """What the tasks draw from.

    Attributes:
        essay: the long text that needles are hidden in.
        squad: SQuAD 2.0 file, for qa_1.
        hotpot: HotpotQA file, for qa_2.
    """

    essay: str
    squad: Path | None = None
    hotpot: Path | None = None


@dataclass(frozen=True)
class TaskRow:
    """One task.

    Attributes:
        max_new_tokens: published generation limit.
        make: from the sources and the length in tokens to the task; None for tasks that are read from a file.
        read: from the sources to the questions of a file, for those.
        score: from an answer and the references to 0 .. 1.
    """

    max_new_tokens: int
    make: Callable[[Sources, int], Task] | None = None
    read: Callable[[Sources], Readings] | None = None
    score: Callable[[str, Sequence[str]], float] = match_all


def _needles(haystack: str, **settings) -> TaskRow:
    def make(sources: Sources, length: int) -> Task:
        return Needles(haystack, tuple(sources.essay.split()), **settings)

    return TaskRow(128, make)


TASKS: dict[str, TaskRow] = {
    "niah_single_1": _needles("noise"),
    "niah_single_2": _needles("essay"),
    "niah_single_3": _needles("essay", value="uuids"),
    "niah_multikey_1": _needles("essay", keys=4),
    "niah_multikey_2": _needles("needle"),
    "niah_multikey_3": _needles("needle", key="uuids", value="uuids"),
    "niah_multivalue": _needles("essay", values=4),
    "niah_multiquery": _needles("essay", keys=4, queries=4),
    "vt": TaskRow(30, lambda sources, length: VariableTracking()),
    "cwe": TaskRow(120, lambda sources, length: CommonWords(length)),
    "fwe": TaskRow(50, lambda sources, length: FrequentWords(length)),
    "qa_1": TaskRow(32, read=lambda sources: read_squad(sources.squad), score=match_part),
    "qa_2": TaskRow(32, read=lambda sources: read_hotpot(sources.hotpot), score=match_part),
}
