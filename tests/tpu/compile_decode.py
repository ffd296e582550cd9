# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles a generation program for a TPU that is not there and prints what it takes, as one JSON object.

    python -m tests.tpu.compile_decode '{"model": "smollm2-135m", "topology": "v5e:2x2", ...}'

A process of its own: libtpu keeps what it once started, and a failed compilation may take the process with it.
"""

import json
import sys
from typing import Any

import jax

from benchmarks.tpu_compile import compile_for_tpu
from benchmarks.tpu_programs import compile_program
from qevict_jax.config import CacheConfig
from qevict_jax.models.config import ModelConfig
from tests.shapes import SHAPES
from tests.tpu.hlo import copied_bytes, fills_lanes, nbytes, unaligned_bytes, whole_copies


def measure(model: str, topology: str, program: str, cache: dict[str, Any], total: int, batch: int) -> dict[str, Any]:
    """Compiles one program of `Decoder` with the decode state donated.

    Args:
        model: a name in `SHAPES`; parameters are bfloat16 and abstract.
        topology: e.g. "v5e:2x2", of which one chip is used.
        program: "block", "run", "token", "event" or "insert", which takes one row into ``batch``.
        cache: the preset ("tuned", "paper" or "full") under "preset", other keys are changes to it.
        total: tokens of prompt and output.
        batch: B.
    """
    config = SHAPES[model]
    changes = dict(cache)
    preset = getattr(CacheConfig, changes.pop("preset"))
    made = compile_program(program, config, preset(**changes), total, batch, topology)
    # a program that only looks at the cache shows what its arrays take, padding included
    looked_at = compile_for_tpu(lambda cache: jax.tree.map(lambda x: x[(0,) * x.ndim], cache), (made.cache,), topology)
    memory, hlo = made.executable.memory_analysis(), made.executable.as_text()
    assert memory is not None and hlo is not None
    # Rows that do not fill whole tiles (K*D = 192) are laid out slots last and copied once a program, see LOG.md.
    large = [leaf for leaf in jax.tree.leaves(made.cache) if nbytes(leaf) >= 1 << 20]
    tiers = [leaf for leaf in large if fills_lanes(leaf)]
    weight_copies = whole_copies(hlo, made.params)
    return {
        "plan_bytes": made.policy.plan.kv_bytes * batch,
        "cache_bytes": made.cache_bytes,
        "cache_argument_bytes": looked_at.memory_analysis().argument_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
        "weight_bytes": made.weight_bytes,
        "layer_bytes": made.policy.plan.kv_bytes * batch // config.layers,
        "activation_bytes": activation_bytes(config, batch),
        "unaligned_bytes": unaligned_bytes(large),
        "kernels": hlo.count("tpu_custom_call"),
        "tier_copies": whole_copies(hlo, tiers),
        "weight_copies": weight_copies,
        "weight_copy_bytes": copied_bytes(weight_copies, made.params),
    }


def activation_bytes(config: ModelConfig, batch: int) -> int:
    """What one token of every sequence needs beside weights and cache: float32, and each kind twice.

    Kinds are logits, the residual stream and its norm, both halves of the MLP, queries, outputs, keys and values.
    """
    attention = config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    return 2 * 4 * batch * (config.vocab + 2 * config.hidden + 2 * config.mlp + attention)


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
