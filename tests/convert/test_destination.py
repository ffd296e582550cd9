# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A destination appears whole or not at all, and nothing that is not ours is destroyed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from convert import convert
from convert.destination import check_destination, check_space, replacing
from qevict_jax.types import QEvictError
from tests.tiny_models import write_hf


@pytest.fixture
def source(tmp_path):
    return write_hf(tmp_path / "hf", "llama")


def _check(path, source, overwrite=True):
    check_destination(path, source, overwrite=overwrite)


def test_replacing_makes_the_directory_and_cleans_up(tmp_path):
    path = tmp_path / "deep" / "model"
    with replacing(path) as working:
        (working / "x").write_text("new")
        assert not path.exists()
    assert (path / "x").read_text() == "new"
    assert os.listdir(path.parent) == ["model"]


def test_a_failure_keeps_the_old_one(tmp_path):
    path = tmp_path / "model"
    with replacing(path) as working:
        (working / "x").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as working:
        (working / "x").write_text("new")
        raise KeyboardInterrupt
    assert (path / "x").read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


def test_success_replaces_the_old_one(tmp_path):
    path = tmp_path / "model"
    for content in ("old", "new"):
        with replacing(path) as working:
            (working / content).touch()
    assert os.listdir(path) == ["new"] and os.listdir(tmp_path) == ["model"]


def test_leftovers_of_a_killed_run_are_removed(tmp_path):
    (stale := tmp_path / ".model.converting").mkdir()
    (stale / "weights.partial_save").mkdir()
    with replacing(tmp_path / "model") as working:
        assert os.listdir(working) == []
    assert os.listdir(tmp_path) == ["model"]


def test_a_run_killed_between_its_two_renames_is_undone(tmp_path, source):
    path = convert(source, tmp_path / "model", progress=False)
    path.rename(tmp_path / ".model.old")
    with pytest.raises(QEvictError, match="exists"):
        _check(path, source, overwrite=False)
    assert (path / "config.json").is_file()


def test_two_at_once(tmp_path):
    with replacing(tmp_path / "model"):
        with pytest.raises(QEvictError, match="another process is converting to"):
            with replacing(tmp_path / "model"):
                pass
    assert os.listdir(tmp_path) == ["model"]


def test_overwrite_destroys_checkpoints_only(tmp_path, source):
    (home := tmp_path / "home").mkdir()
    _check(home, source)  # empty: nothing to lose
    (home / "thesis.tex").touch()
    with pytest.raises(QEvictError, match="not a qevict_jax checkpoint: it will not be overwritten"):
        _check(home, source)
    with pytest.raises(QEvictError, match="is a file, not a checkpoint"):
        _check(home / "thesis.tex", source)
    with pytest.raises(QEvictError, match="exists; choose another"):
        _check(home, source, overwrite=False)


@pytest.mark.parametrize("relation", [".", "sub", ".."])
def test_source_and_destination_apart(source, relation):
    with pytest.raises(QEvictError, match="must not contain each other"):
        _check(source / relation, source)


def test_disk_space(tmp_path):
    check_space(tmp_path / "not" / "there" / "yet", 1)
    with pytest.raises(QEvictError, match=r"needs 1048576.0 GiB, the disk has \d+.\d GiB free"):
        check_space(tmp_path / "model", 2**50)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_for_real(tmp_path, source, number):
    script = """if True:
        import sys, time
        import convert.conversion as conversion
        def slow(source, directory, **options):
            (directory.parent / "weights").mkdir()
            print("writing", flush=True)
            time.sleep(60)
        conversion.write_weights = slow
        conversion.convert(sys.argv[1], sys.argv[2], progress=False)
    """
    command = [sys.executable, "-c", script, source, tmp_path / "model"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == b"writing\n"
    time.sleep(0.1)
    process.send_signal(number)
    process.wait(timeout=30)
    process.stdout.close()
    assert not (tmp_path / "model").exists()
    assert not list(tmp_path.glob(".model.*/config.json"))
    assert convert(source, tmp_path / "model", progress=False).is_dir()
    assert sorted(os.listdir(tmp_path)) == ["hf", "model"]
