# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that a program of generation takes on a TPU slice, from its compiled form; no TPU is needed, libtpu is.

    python -m benchmarks.tpu_memory '{"program": "block", "model": "llama-3.1-8b", "cache": {"policy": "full"},
        "total": 1280, "batch": 32, "topology": "v6e:2x2"}'

A process of its own: a failed compilation may take it along. It prints one line of JSON.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

import jax

from benchmarks.tpu_compile import NO_TPU
from benchmarks.tpu_programs import compile_program
from qevict_jax.config import CacheConfig
from qevict_jax.mesh import MeshShape
from qevict_jax.models.config import NAMED_SHAPES

_HBM = re.compile(r"available HBM \(([\d.]+)G\)|of ([\d.]+)G hbm")


@dataclass(frozen=True)
class Slice:
    """Chips that share a model: their number, or None for one, and the topology that XLA knows them by."""

    name: str
    topology: str
    chips: int | None = None


# smallest first; v7x has two devices to a chip, and a device is what runs a program
SLICES = {
    "v5e": (Slice("v5e", "v5e:2x2"), Slice("v5e 2x2", "v5e:2x2", 4), Slice("v5e 2x4", "v5e:2x4", 8)),
    "v6e": (Slice("v6e", "v6e:2x2"), Slice("v6e 2x2", "v6e:2x2", 4), Slice("v6e 2x4", "v6e:2x4", 8)),
    "v5p": (Slice("v5p", "v5p:2x2x1"), Slice("v5p 2x2x1", "v5p:2x2x1", 4)),
    "v7x": (Slice("v7x, half a chip", "tpu7x:2x2x1"), Slice("v7x 2x2x1", "tpu7x:2x2x1", 8)),
}


@dataclass(frozen=True)
class Question:
    """A program of `compile_program`, with a model of `NAMED_SHAPES`."""

    program: str
    model: str
    cache: CacheConfig
    total: int
    batch: int
    topology: str
    chips: int | None = None
    prompt: int | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes on each chip; all but ``hbm_bytes`` are None where the program does not fit, and that where it does.

    Attributes:
        hbm_bytes: what the compiler says there is.
        peak_bytes: at the moment when most is in use, arguments and results included.
        temp_bytes: beside arguments and results.
        weight_bytes: parameters.
        cache_bytes: the cache.
        full_cache_bytes: a full cache in its place.
    """

    hbm_bytes: int | None = None
    peak_bytes: int | None = None
    temp_bytes: int | None = None
    weight_bytes: int | None = None
    cache_bytes: int | None = None
    full_cache_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether the compiler found room."""
        return self.hbm_bytes is None


def memory(question: Question) -> Memory:
    """Compiles in a process of its own.

    Raises:
        RuntimeError: compilation failed for another reason than memory.
    """
    command = [sys.executable, "-m", "benchmarks.tpu_memory", json.dumps(asdict(question))]
    done = subprocess.run(command, env={**os.environ, **NO_TPU}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{question}: {done.stderr[-2000:]}")
    return Memory(**json.loads(done.stdout.splitlines()[-1]))


def _measure(asked: dict[str, Any]) -> Memory:
    question = Question(**{**asked, "cache": CacheConfig(**asked["cache"])})
    shape = None if question.chips is None else MeshShape(model=question.chips)
    try:
        made = compile_program(
            question.program,
            NAMED_SHAPES[question.model],
            question.cache,
            question.total,
            question.batch,
            question.topology,
            shape,
            question.prompt,
        )
    except jax.errors.JaxRuntimeError as error:
        hbm = _HBM.search(str(error))
        if hbm is None:
            raise
        return Memory(hbm_bytes=int(float(hbm[1] or hbm[2]) * 2**30))
    found = made.executable.memory_analysis()
    assert found is not None
    return Memory(
        peak_bytes=found.peak_memory_in_bytes,
        temp_bytes=found.temp_size_in_bytes,
        weight_bytes=made.weight_bytes,
        cache_bytes=made.cache_bytes,
        full_cache_bytes=made.full_cache_bytes,
    )


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(json.loads(sys.argv[1])))))
