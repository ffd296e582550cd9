# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the faster tests of `tests/eight_devices` in a process that takes this CPU for eight devices."""

import os
import subprocess
import sys
from pathlib import Path

EIGHT_DEVICES = "--xla_force_host_platform_device_count=8"
ROOT = Path(__file__).parents[1]


def test_meshes_of_eight_devices():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-q", "-m", "not slow", "tests/eight_devices"],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": EIGHT_DEVICES, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    print(done.stdout)
