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
    """What a layer keeps of every token, and nothing as wide as the MLP: the same bound per token at both lengths.

    That is the residual stream, queries by token and by head, output, and keys and values in three orders, rows of a
    head filling 128 lanes.
    """
    config = SHAPES[model]
    lanes = -(-config.head_dim // 128) * 128
    per_token = 2 * (6 * max(config.hidden, config.heads * lanes) + 8 * config.kv_heads * lanes)
    asked = [{"model": model, "topology": topology, "part": "program", "size": size} for size in SIZES]
    for found in compiled(asked):
        assert found["kernels"] == 2, found
        assert found["temp_bytes"] <= per_token * found["size"], found


def test_the_prompt_pass_knows_nothing_of_the_depth():
    """Beside weights and cache two layers of Llama take what 32 take; SmolLM2's cache is laid out anew (LOG.md)."""
    asked = {"model": "llama-3.1-8b", "topology": "v6e:2x2", "part": "program", "size": 8192}
    shallow, deep = compiled([{**asked, "layers": layers} for layers in (2, 32)])
    assert deep["temp_bytes"] <= 1.05 * shallow["temp_bytes"], (shallow, deep)
