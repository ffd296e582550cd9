# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The prompt pass, really compiled for TPU: it holds the kernels, and its memory is linear in the prompt."""

import json
from typing import Any

import pytest

from tests.shapes import SHAPES
from tests.tpu.in_process import NEEDS_LIBTPU, run_module

pytestmark = NEEDS_LIBTPU

# Mistral-7B has the heads of Llama-3.1-8B.
MODELS = ("llama-3.1-8b", "qwen2.5-7b", "smollm2-135m")
SIZES = (8192, 32768)


def compiled(programs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `compile_prefill` prints of each program, from a process of its own."""
    return run_module("tests.tpu.compile_prefill", json.dumps(programs))


@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2", "tpu7x:2x2x1"])
def test_one_kernel_per_part_and_memory_linear_in_the_prompt(topology: str):
    """Beside operands and results a part keeps at most the same in another order, and log-sum-exps of one KV head 128
    lanes wide: less than four times the queries. S x S logits of one head of Llama-3.1-8B are 16 times the queries at
    32K tokens.
    """
    parts = [{"part": "attention"}, {"part": "mass"}, {"part": "mass", "queries": None}]
    asked = [
        {"model": model, "topology": topology, "size": size, **part}
        for model in MODELS
        for part in parts
        for size in SIZES
    ]
    for found in compiled(asked):
        assert found["kernels"] == 1, found
        assert found["temp_bytes"] < 4 * found["q_bytes"], found


@pytest.mark.parametrize(("model", "topology"), [("smollm2-135m", "v5e:2x2"), ("llama-3.1-8b", "v6e:2x2")])
def test_the_whole_prompt_pass(model: str, topology: str):
    """One layer's activations and nothing that grows faster: the same bound per token at both lengths."""
    config = SHAPES[model]
    per_token = 2 * (2 * config.mlp + 8 * max(config.hidden, config.heads * config.head_dim))
    asked = [{"model": model, "topology": topology, "part": "program", "size": size} for size in SIZES]
    for found in compiled(asked):
        assert found["kernels"] == 2, found
        assert found["temp_bytes"] <= per_token * found["size"], found
