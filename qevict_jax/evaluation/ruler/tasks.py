# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The table of RULER's thirteen tasks with their published parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qevict_jax.evaluation.ruler.aggregation import CommonWords, FrequentWords
from qevict_jax.evaluation.ruler.draft import Task
from qevict_jax.evaluation.ruler.needles import Needles
from qevict_jax.evaluation.ruler.scoring import match_all, match_part
from qevict_jax.evaluation.ruler.sources import Readings, haystack_text, read_hotpot, read_squad
from qevict_jax.evaluation.ruler.tracking import VariableTracking


@dataclass(frozen=True)
class Sources:
    """What the tasks draw from.

    Attributes:
        essay: the long text that needles are hidden in.
        squad: questions of SQuAD 2.0, for qa_1; None without its file.
        hotpot: questions of HotpotQA, for qa_2; None without its file.
        hashes: SHA-256 of each text, by name.
    """

    essay: str
    squad: Readings | None = None
    hotpot: Readings | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, haystack: str, squad: Path | None = None, hotpot: Path | None = None) -> "Sources":
        """Reads all of them.

        Args:
            haystack: as for `haystack_text`.
            squad: file of SQuAD 2.0.
            hotpot: file of HotpotQA in the distractor setting.

        Raises:
            QEvictError: there is no such file, or it is not of the form it should have.
        """
        essay, digest = haystack_text(haystack)
        hashes, readings = {"haystack": digest}, {}
        for name, file, read in (("squad", squad, read_squad), ("hotpot", hotpot, read_hotpot)):
            if file is not None:
                readings[name], hashes[file.name] = read(file)
        return cls(essay, hashes=hashes, **readings)


@dataclass(frozen=True)
class TaskRow:
    """One task.

    Attributes:
        max_new_tokens: published generation limit.
        make: from the sources and the length in tokens to the task; None for tasks that are read from a file.
        readings: from the sources to the questions of that file, None if there is none.
        file: the option and the name of that file.
        score: from an answer and the references to 0 .. 1.
    """

    max_new_tokens: int
    make: Callable[[Sources, int], Task] | None = None
    readings: Callable[[Sources], Readings | None] = lambda sources: None
    file: str = ""
    score: Callable[[str, Sequence[str]], float] = match_all

    def ready(self, sources: Sources) -> bool:
        """Whether the sources hold what this task is made of."""
        return self.make is not None or self.readings(sources) is not None


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
    "qa_1": TaskRow(
        32,
        readings=lambda sources: sources.squad,
        file="--squad FILE, dev-v2.0.json of SQuAD 2.0",
        score=match_part,
    ),
    "qa_2": TaskRow(
        32,
        readings=lambda sources: sources.hotpot,
        file="--hotpot FILE, hotpot_dev_distractor_v1.json of HotpotQA",
        score=match_part,
    ),
}


def ready_tasks(sources: Sources) -> list[str]:
    """The tasks that some sources are enough for: eleven need no file, two one each."""
    return [name for name, row in TASKS.items() if row.ready(sources)]
