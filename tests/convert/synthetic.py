# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Large checkpoints of constant tensors, written without ever holding one, and a meter of resident memory."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from qevict_jax.models.config import ModelConfig
from qevict_jax.models.key_map import expected_tensors
from tests.tiny_models import hf_config
from tests.tiny_tokenizer import write_tokenizer

_BLOCK = np.full(2**22, 0x3F80, np.uint16).tobytes()  # bfloat16 ones

_METER = """
def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
"""


def write_large(directory: Path, *, layers: int, shard_bytes: int, **sizes: int) -> int:
    """Writes a bfloat16 Llama in shards of about `shard_bytes`; returns the bytes of its tensors.

    Args:
        directory: made.
        layers: number of layers.
        shard_bytes: a shard is closed when it is at least this large.
        **sizes: keys of config.json to replace, e.g. ``hidden_size``.
    """
    directory.mkdir(parents=True)
    content = hf_config("llama") | {"num_hidden_layers": layers, "dtype": "bfloat16"} | sizes
    (directory / "config.json").write_text(json.dumps(content))
    write_tokenizer(directory, has_bos=True, template="with_bos", config_style="v5")
    shards, size = [{}], 0
    for name, shape in expected_tensors(ModelConfig.from_hf(content)).items():
        if size >= shard_bytes:
            shards, size = [*shards, {}], 0
        nbytes = 2 * math.prod(shape)
        shards[-1][name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, size + nbytes]}
        size += nbytes
    for i, header in enumerate(shards, 1):
        _write_shard(directory / f"model-{i:05}-of-{len(shards):05}.safetensors", header)
    return sum(entry["data_offsets"][1] - entry["data_offsets"][0] for part in shards for entry in part.values())


def _write_shard(path: Path, header: dict) -> None:
    text = json.dumps(header).encode()
    left = max(entry["data_offsets"][1] for entry in header.values())
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while left:
            left -= file.write(_BLOCK[:left])


def peak_growth(setup: str, measured: str, *arguments: object) -> int:
    """Bytes by which resident memory peaks above its level after `setup`, in a process of its own.

    Args:
        setup: Python statements that import and warm up; `sys.argv[1:]` are `arguments`.
        measured: statements whose peak counts.
        *arguments: passed as strings.
    """
    before = "import sys\nbase = status('VmRSS')\nopen('/proc/self/clear_refs', 'w').write('5')\n"
    script = f"{_METER}\n{setup}\n{before}{measured}\nprint(status('VmHWM') - base)"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    # glibc keeps freed blocks of up to 32 MiB per thread unless told otherwise; what we hold is the question.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert result.returncode == 0, result.stderr
    return int(result.stdout.split()[-1])
