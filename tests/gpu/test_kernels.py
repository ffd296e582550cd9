# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The GPU kernels, really compiled for NVIDIA GPUs that are not there, at the shapes of real models."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pallas_kernels.prefill_window_mass import arg_specs as mass_arg_specs
from pallas_kernels.tiered_decode_attention import arg_specs

pytestmark = [
    pytest.mark.gpu_compile,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton, from the extra 'gpu-compile'"),
]

ROOT = Path(__file__).parents[2]
# Shared memory that a block of threads can have, from the CUDA programming guide.
DEVICES = {"sm_80": 163 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
ROWS = {"tiered_decode_attention": arg_specs.MODEL_SPECS, "prefill_window_mass": mass_arg_specs.MODEL_SPECS}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", ROWS)
def test_compiles_without_spills(kernel, device, record_property):
    """All rows in one process: starting one takes longer than tracing them all."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_compile", kernel, device],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [machine["row"] for machine in found] == list(ROWS[kernel])
    for machine in found:
        record_property(machine["row"], machine)
        assert machine["spills"] == machine["stack"] == 0, machine
        assert machine["shared"] <= DEVICES[device], machine
