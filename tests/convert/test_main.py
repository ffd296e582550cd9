# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m convert` as a user types it."""

import subprocess
import sys

from tests.tiny_models import write_hf


def _run(*arguments):
    return subprocess.run([sys.executable, "-m", "convert", *arguments], capture_output=True, text=True, timeout=120)


def test_converts_and_prints_the_destination(tmp_path):
    result = _run(write_hf(tmp_path / "hf", "llama"), tmp_path / "model", "--dtype", "bfloat16")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{tmp_path / 'model'}\n"
    assert "converting: 100%" in result.stderr and "B/s" in result.stderr


def test_an_error_is_one_line_on_stderr(tmp_path):
    write_hf(tmp_path / "hf", "llama", shards=2)
    (tmp_path / "hf/model-00001-of-00002.safetensors").unlink()
    result = _run(tmp_path / "hf", tmp_path / "model")
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == f"error: {tmp_path / 'hf'}: shard model-00001-of-00002.safetensors is missing\n"
