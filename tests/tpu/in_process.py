# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a module that compiles for TPU in a process of its own, which a failed compilation may take with it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tpu_compile import NO_TPU

ROOT = Path(__file__).parents[2]
NEEDS_LIBTPU = [
    pytest.mark.tpu_compile,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, from the extra 'tpu'"),
]


def run_module(module: str, argument: str, timeout: float = 900) -> list[dict[str, Any]]:
    """The JSON lines that ``python -m module argument`` prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, argument],
        cwd=ROOT,
        env={**os.environ, **NO_TPU},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
