# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A run in a directory: what was asked, and one JSON line for everything that is finished.

    DIR/run.json        configuration, and the environment of every process that worked on it
    DIR/samples.jsonl   one line per finished sample and cache

A line is one write to a file opened for appending, followed by fsync: whatever ends the process, all lines but the
last are whole. A torn last line is cut off when the run is continued, so no sample is lost and none is there twice.
The configuration is on disk, with its name, before the first line.
"""

import datetime
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from qevict_jax.evaluation.provenance import environment
from qevict_jax.types import QEvictError

_CONFIGURATION, _LINES, _TEMPORARY = "run.json", "samples.jsonl", "run.json.tmp"
DATE = "date"
Key = tuple[str, str, int]


class Run:
    """An open run; a context manager that holds a lock, so that two processes never write to one run.

    Attributes:
        directory: where it is.
        configuration: what was asked.
        done: keys of the lines that are there.
    """

    def __init__(self, directory: Path, configuration: Mapping[str, Any], *, resume: bool = False):
        """Starts a run, or continues one.

        Args:
            directory: made if it is not there; a new run needs one without a finished line.
            configuration: what was asked, JSON values only; a run can only be continued with the same.
            resume: continue the run that is there, or start if there is none.

        Raises:
            QEvictError: another run is there, or one of another configuration or of none, or a process is at it, or it
                is damaged.
        """
        self.directory, self.configuration = directory, json.loads(json.dumps(configuration))
        names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
        # a process that was killed before it had written the configuration leaves the other files
        if _CONFIGURATION not in names and names - {_LINES, _TEMPORARY}:
            raise QEvictError(f"{directory} is not empty and holds no run; choose another directory")
        directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(directory / _LINES, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._lock()
            # without a finished line there is nothing to lose, and the options may have been what was wrong
            finished = b"\n" in (directory / _LINES).read_bytes()
            if finished and not (directory / _CONFIGURATION).exists():
                raise QEvictError(
                    f"{directory} holds finished lines without the {_CONFIGURATION} that says what they answer; put it "
                    "back, or choose another directory"
                )
            if finished and not resume:
                raise QEvictError(f"{directory} holds a run already; --resume continues it, another directory keeps it")
            environments = self._check_configuration() if finished else []
            _replace(directory / _CONFIGURATION, self.configuration | {"environments": [*environments, environment()]})
            self.done = {line_key(line) for line in self._repair()}
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)  # and with it the lock

    def append(self, line: Mapping[str, Any]) -> None:
        """Writes one finished line; when this returns it is on disk.

        Raises:
            ValueError: its key is there already.
        """
        key = line_key(line)
        if key in self.done:
            raise ValueError(f"{key} is in {self.directory} already")
        content = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "backslashreplace")
        while content:
            content = content[os.write(self._file, content) :]
        os.fsync(self._file)
        self.done.add(key)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise QEvictError(f"another process is at the run in {self.directory}") from None

    def _check_configuration(self) -> list[Any]:
        there = read_configuration(self.directory)
        environments = there.pop("environments", [])
        names = there.keys() | self.configuration.keys()
        differing = sorted(name for name in names if there.get(name) != self.configuration.get(name))
        if differing:
            raise QEvictError(
                f"{self.directory} is a run of another configuration; {', '.join(differing)} differ. Resume it with "
                "the options it was started with, or choose another directory"
            )
        return environments

    def _repair(self) -> list[dict[str, Any]]:
        """Cuts off a torn last line and returns the whole ones."""
        path = self.directory / _LINES
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        lines = list(_parse(path, content[:whole], torn_end=True))
        length = sum(size for size, _ in lines)
        if length < len(content):
            os.ftruncate(self._file, length)
            os.fsync(self._file)
        return [line for _, line in lines]


def prompt_date(directory: Path, *, resume: bool) -> datetime.datetime | None:
    """The moment that a run's prompts are made at: that of the run that is continued, or now.

    None for a run that does not tell, since its prompts were made by the clock.

    Raises:
        QEvictError: the run that is continued is damaged.
    """
    if not resume or not (directory / _CONFIGURATION).is_file():
        return datetime.datetime.now().replace(microsecond=0)
    stored = read_configuration(directory).get(DATE)
    return None if stored is None else datetime.datetime.fromisoformat(stored)


def line_key(line: Mapping[str, Any]) -> Key:
    """What a line is about: the cache, the task and the sample's index."""
    return line["cache"], line["task"], line["index"]


def read_configuration(directory: Path) -> dict[str, Any]:
    """What a run was asked, and its environments.

    Raises:
        QEvictError: there is no run.
    """
    file = directory / _CONFIGURATION
    if not file.is_file():
        raise QEvictError(f"{directory} holds no run: it has no {_CONFIGURATION}")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise QEvictError(f"{file} is damaged: {error}") from None


def read_lines(directory: Path) -> list[dict[str, Any]]:
    """The finished lines of a run, in the order in which they finished; a torn last line does not count.

    Raises:
        QEvictError: a line in the middle is damaged, or one is there twice.
    """
    path = directory / _LINES
    content = path.read_bytes() if path.is_file() else b""
    lines = [line for _, line in _parse(path, content[: content.rfind(b"\n") + 1], torn_end=True)]
    if len({line_key(line) for line in lines}) < len(lines):
        raise QEvictError(f"{path} holds a sample twice")
    return lines


def _parse(path: Path, content: bytes, *, torn_end: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Bytes and content of each line; a damaged last one is dropped if ``torn_end``."""
    raws = content.split(b"\n")[:-1]
    for number, raw in enumerate(raws, 1):
        try:
            line = json.loads(raw)
            line_key(line)
        except (ValueError, KeyError, TypeError):
            if torn_end and number == len(raws):
                return
            raise QEvictError(f"{path} is damaged at line {number}") from None
        yield len(raw) + 1, line


def _replace(file: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file so that it is there whole, or as it was."""
    temporary = file.with_name(_TEMPORARY)
    with open(temporary, "w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=1, ensure_ascii=False)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, file)
    # or a power cut may undo the renaming after lines were written
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
