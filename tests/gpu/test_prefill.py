# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel of window mass, really compiled for NVIDIA GPUs that are not there, at the shapes of real models."""

import json
import os
import subprocess
import sys

from pallas_kernels.prefill_window_mass.arg_specs import MODEL_SPECS
from tests.gpu.test_kernels import DEVICES, ROOT
from tests.gpu.test_kernels import pytestmark as pytestmark


def test_compiles_without_spills(record_property):
    """All in one process: a kernel takes two seconds, starting one takes longer."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compile_prefill", json.dumps(list(MODEL_SPECS)), *DEVICES],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(MODEL_SPECS) * len(DEVICES)
    for machine in found:
        record_property(f"{machine['name']} {machine['device']}", machine)
        assert machine["spills"] == machine["stack"] == 0, machine
        assert machine["shared"] <= DEVICES[machine["device"]], machine
