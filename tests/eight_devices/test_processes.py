# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes with two devices each are one mesh of four: both load their own parts and learn all answers."""

import json
import os
import socket
import subprocess
import sys

import pytest

from qevict_jax import QEvictError
from qevict_jax.mesh import join_processes
from tests.converted import load_converted
from tests.eight_devices.one_of_two import answers
from tests.test_eight_devices import ROOT


@pytest.mark.slow
def test_two_processes_answer_as_one(tmp_path):
    checkpoint = load_converted(tmp_path, "llama").config.checkpoint
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.eight_devices.one_of_two", checkpoint, f"{address},2,{index}"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    expected = [list(tokens) for tokens in answers(checkpoint)]
    for index, process in enumerate(started):
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-3000:]
        assert json.loads(out.splitlines()[-1]) == {"process": index, "tokens": expected}


def test_processes_that_are_described_badly():
    with pytest.raises(QEvictError, match="give auto, or HOST:PORT,COUNT,INDEX"):
        join_processes("10.0.0.1,2,0")
