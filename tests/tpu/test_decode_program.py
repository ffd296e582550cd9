# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The decode program, really compiled for TPU: the cache stays in place and takes the memory that the plan says."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.tpu_compile,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, from the extra 'tpu'"),
]

ROOT = Path(__file__).parents[2]
NO_TPU = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # ask no metadata server what machine this is
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
}

# What a step may need beside its arguments: activations of one layer, logits, and the transients of XLA attention. XLA
# also lays SmolLM2's down projection out anew once a program; those are weights and come off.
TEMP_BYTES = 12 << 20
# What padding may add. Arrays of one number per window fill rows of 128 lanes; so do key parameters where K*D = 192.
PADDING = {"smollm2-135m": 1.1, "llama-3.1-8b": 1.02, "qwen2.5-7b": 1.02}

# 16 GB of Llama weights in bfloat16 do not fit a v5e chip, so these compile for v6e.
CASES = {
    "smollm2-tuned": ("smollm2-135m", "v5e:2x2", "block", {"preset": "tuned", "budget": 0.2}),
    "smollm2-paper": ("smollm2-135m", "v5e:2x2", "block", {"preset": "paper", "budget": 0.2}),
    "smollm2-full": ("smollm2-135m", "v5e:2x2", "block", {"preset": "full"}),
    "llama-tuned": ("llama-3.1-8b", "v6e:2x2", "run", {"preset": "tuned", "budget": 0.2}),
    "llama-w16": (
        "llama-3.1-8b",
        "v6e:2x2",
        "block",
        {"preset": "tuned", "budget": 0.2, "window": 16, "quant_fraction": 0.9, "ranking": "decay"},
    ),
    "qwen-w16": (
        "qwen2.5-7b",
        "v6e:2x2",
        "block",
        {"preset": "tuned", "budget": 0.1, "window": 16, "quant_fraction": 0.7, "bits": 2, "residency": "ranked"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_cache_stays_in_place(case: str):
    model, topology, program, cache = CASES[case]
    asked = {"model": model, "topology": topology, "program": program, "cache": cache, "total": 8192, "batch": 1}
    done = subprocess.run(
        [sys.executable, "-m", "tests.tpu.compile_decode", json.dumps(asked)],
        cwd=ROOT,
        env={**os.environ, **NO_TPU},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tier_copies"] == {}
    assert found["temp_bytes"] - found["weight_copy_bytes"] <= TEMP_BYTES, found
    assert found["cache_bytes"] == found["plan_bytes"]
    assert found["cache_argument_bytes"] <= PADDING[model] * found["plan_bytes"], found
    assert found["alias_bytes"] >= found["cache_bytes"], found
