# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The decode attention kernel, really compiled for every kind of TPU at the shapes of real models."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.tpu_compile import NO_TPU
from pallas_kernels.tiered_decode_attention.arg_specs import MODEL_SPECS

pytestmark = [
    pytest.mark.tpu_compile,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, from the extra 'tpu'"),
]

ROOT = Path(__file__).parents[2]
TEMP_BYTES = 1 << 20  # queries in their rows and masses, for one sequence


@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2", "tpu7x:2x2x1"])
def test_every_model_compiles_in_place(topology: str):
    """One process a topology, which saves starting libtpu for every shape."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tpu.compile_kernels", topology],
        cwd=ROOT,
        env={**os.environ, **NO_TPU},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert found.keys() == MODEL_SPECS.keys()
    for name, line in found.items():
        assert line["tier_copies"] == {}, line
        temporary = line["temp_bytes"] - line["unaligned_bytes"]
        assert temporary <= TEMP_BYTES * MODEL_SPECS[name].B, line
        assert temporary < line["tier_bytes"] / MODEL_SPECS[name].L / 4, line
