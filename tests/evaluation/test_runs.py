# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Runs survive whatever ends the process, at any byte."""

import datetime
import os
import random
import signal
import stat
import time

import pytest

from qevict_jax.evaluation import runs
from qevict_jax.evaluation.runs import DATE, Run, prompt_date, read_configuration, read_lines
from qevict_jax.types import QEvictError

CONFIGURATION = {"benchmark": "ruler", "samples": 3, "budgets": (0.2, 0.1)}


def line(index, text="ä\u2028\n"):
    return {"cache": "full", "task": "vt@64", "index": index, "text": text}


def written(directory, count):
    with Run(directory, CONFIGURATION) as run:
        for index in range(count):
            run.append(line(index))
    return (directory / "samples.jsonl").read_bytes()


def test_lines_and_configuration_come_back(tmp_path):
    content = written(tmp_path / "run", 3)
    assert read_lines(tmp_path / "run") == [line(index) for index in range(3)] and content.count(b"\n") == 3
    stored = read_configuration(tmp_path / "run")
    assert stored["budgets"] == [0.2, 0.1]
    (environment,) = stored["environments"]
    assert {"qevict_jax", "jax", "python", "commit", "device"} <= environment.keys()


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_torn_end_is_cut_off_and_the_run_goes_on_as_if_never_stopped(tmp_path, cut):
    whole = written(tmp_path / "whole", 3)
    written(tmp_path / "torn", 2)
    file = tmp_path / "torn" / "samples.jsonl"
    file.write_bytes(whole[: len(whole) - cut])
    with Run(tmp_path / "torn", CONFIGURATION, resume=True) as run:
        assert run.done == {("full", "vt@64", index) for index in range(whole[: len(whole) - cut].count(b"\n"))}
        for index in range(3):
            if ("full", "vt@64", index) not in run.done:
                run.append(line(index))
    assert file.read_bytes() == whole
    assert len(read_configuration(tmp_path / "torn")["environments"]) == 2


def test_a_last_line_of_garbage_is_torn_too_and_one_in_the_middle_is_damage(tmp_path):
    whole = written(tmp_path / "run", 2)
    file = tmp_path / "run" / "samples.jsonl"
    file.write_bytes(whole + b"\0" * 9 + b"\n")
    with Run(tmp_path / "run", CONFIGURATION, resume=True):
        assert file.read_bytes() == whole
    file.write_bytes(b"{}\n" + whole)
    with pytest.raises(QEvictError, match="damaged at line 1"):
        Run(tmp_path / "run", CONFIGURATION, resume=True)
    file.write_bytes(whole + whole)
    with pytest.raises(QEvictError, match="twice"):
        read_lines(tmp_path / "run")


def test_nothing_is_overwritten(tmp_path):
    content = written(tmp_path / "run", 1)
    with pytest.raises(QEvictError, match="--resume continues it"):
        Run(tmp_path / "run", CONFIGURATION)
    with pytest.raises(QEvictError, match="another configuration; samples, seed differ"):
        Run(tmp_path / "run", CONFIGURATION | {"samples": 4, "seed": 1}, resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    with pytest.raises(QEvictError, match="holds no run"):
        Run(tmp_path / "other", CONFIGURATION, resume=True)
    assert (tmp_path / "run" / "samples.jsonl").read_bytes() == content
    with Run(tmp_path / "run", CONFIGURATION, resume=True) as run, pytest.raises(ValueError, match="already"):
        run.append(line(0))


def test_a_run_without_a_finished_line_is_no_loss(tmp_path):
    written(tmp_path / "run", 0)
    (tmp_path / "run" / "samples.jsonl").write_bytes(b'{"cache": "fu')
    with Run(tmp_path / "run", CONFIGURATION | {"seed": 1}) as run:
        run.append(line(0))
    assert read_lines(tmp_path / "run") == [line(0)] and read_configuration(tmp_path / "run")["seed"] == 1


@pytest.mark.parametrize("resume", [False, True])
def test_finished_lines_of_an_unknown_run_are_not_adopted(tmp_path, resume):
    content = written(tmp_path, 1)
    (tmp_path / "run.json").unlink()
    with pytest.raises(QEvictError, match="finished lines without the run.json"):
        Run(tmp_path, CONFIGURATION | {"seed": 1}, resume=resume)
    assert (tmp_path / "samples.jsonl").read_bytes() == content and not (tmp_path / "run.json").exists()


def test_the_name_of_the_configuration_is_on_disk_too(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def remember(file):
        names = {path.name for path in tmp_path.iterdir()} if stat.S_ISDIR(os.fstat(file).st_mode) else set()
        synced.append((os.fstat(file).st_ino, names))
        fsync(file)

    monkeypatch.setattr(os, "fsync", remember)
    written(tmp_path, 0)
    assert (tmp_path.stat().st_ino, {"run.json", "samples.jsonl"}) in synced


def test_two_processes_are_never_at_one_run(tmp_path):
    with Run(tmp_path / "run", CONFIGURATION), pytest.raises(QEvictError, match="another process"):
        Run(tmp_path / "run", CONFIGURATION, resume=True)
    Run(tmp_path / "run", CONFIGURATION, resume=True).__exit__(None, None, None)


def test_resume_starts_a_run_that_is_not_there(tmp_path):
    with Run(tmp_path / "a" / "run", CONFIGURATION, resume=True) as run:
        assert not run.done


def test_a_run_that_goes_on_has_the_beginning_of_the_one_that_began(tmp_path):
    begun = datetime.datetime(2024, 7, 26, 23, 59, 30)
    assert abs(prompt_date(tmp_path, resume=True) - datetime.datetime.now()) < datetime.timedelta(minutes=5)
    with Run(tmp_path / "run", CONFIGURATION | {DATE: begun.isoformat()}):
        pass
    assert prompt_date(tmp_path / "run", resume=True) == begun != prompt_date(tmp_path / "run", resume=False)
    # one of an earlier version made its prompts by the clock
    written(tmp_path / "old", 1)
    assert prompt_date(tmp_path / "old", resume=True) is None


LINES = 600


def write_slowly(directory):
    with Run(directory, CONFIGURATION, resume=True) as run:
        for index in range(LINES):
            if ("full", "vt@64", index) not in run.done:
                run.append(line(index, "x" * 50_000))


@pytest.mark.filterwarnings("ignore:os.fork")
def test_killed_three_times_at_random_nothing_is_lost_and_nothing_is_there_twice(tmp_path, monkeypatch):
    # the children are forks of a process with threads of jax, which they must not touch
    monkeypatch.setattr(runs, "environment", dict)
    pause, seen = random.Random(0), []
    for last in (False, False, False, True):
        child = os.fork()
        if not child:
            try:
                write_slowly(tmp_path / "run")
                os._exit(0)
            finally:
                os._exit(1)
        if not last:
            time.sleep(pause.uniform(0.005, 0.05))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert os.WIFEXITED(status) == last or os.waitstatus_to_exitcode(status) == 0
        seen.append([entry["index"] for entry in read_lines(tmp_path / "run")])
    assert seen[-1] == list(range(LINES)) and len(seen[0]) < LINES
    assert all(part == seen[-1][: len(part)] for part in seen)
    assert len(read_configuration(tmp_path / "run")["environments"]) >= 1


def test_killed_before_the_configuration_was_written(tmp_path):
    (tmp_path / "samples.jsonl").touch()
    (tmp_path / "run.json.tmp").write_text("{")
    assert written(tmp_path, 1).count(b"\n") == 1
