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
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from qevict_jax.config import CacheConfig
from qevict_jax.decoding import Decoder
from qevict_jax.models.config import ModelConfig
from qevict_jax.models.steps import Program, abstract_params
from qevict_jax.policies import make_policy
from qevict_jax.sampling import Filters, Numbers, Sampling
from tests.shapes import SHAPES
from tests.tpu.hlo import copied_bytes, fills_lanes, nbytes, unaligned_bytes, whole_copies

OUTPUT = 256


def measure(model: str, topology: str, program: str, cache: dict[str, Any], total: int, batch: int) -> dict[str, Any]:
    """Compiles one program of `Decoder` with the decode state donated.

    Args:
        model: a name in `SHAPES`; parameters are bfloat16 and abstract.
        topology: e.g. "v5e:2x2", of which one chip is used.
        program: "block", "run", "token" or "event".
        cache: the preset ("tuned", "paper" or "full") under "preset", other keys are changes to it.
        total: tokens of prompt and output.
        batch: B.
    """
    config = SHAPES[model]
    changes = dict(cache)
    preset = getattr(CacheConfig, changes.pop("preset"))
    policy = make_policy(config.kv_shape(), preset(**changes), total, platform="tpu")
    sampling = Sampling()
    decoder = Decoder(Program.of(config), policy, Filters.of(sampling), (2,), OUTPUT)

    params = abstract_params(config, "bfloat16")
    numbers = jax.eval_shape(lambda: Numbers.of(sampling))
    vector = jax.ShapeDtypeStruct((batch,), jnp.int32)
    state = jax.eval_shape(
        decoder.begin,
        params,
        jax.eval_shape(lambda: policy.init(batch)),
        jax.ShapeDtypeStruct((batch, config.vocab), jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.bool_),
        vector,
        numbers,
    )
    chip = SingleDeviceSharding(topologies.get_topology_desc(topology, platform="tpu").devices[0])

    def compiled(function: Any, *args: Any, **options: Any) -> Any:
        placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=chip), args)
        return jax.jit(function, **options).lower(*placed).compile()

    arguments = (params, state) if program == "event" else (params, state, numbers)
    executable = compiled(getattr(decoder, program), *arguments, donate_argnums=1)
    # a program that only looks at the cache shows what its arrays take, padding included
    looked_at = compiled(lambda cache: jax.tree.map(lambda x: x[(0,) * x.ndim], cache), state.cache)
    memory, hlo = executable.memory_analysis(), executable.as_text()
    # Rows that do not fill whole tiles (K*D = 192) are laid out slots last and copied once a program, see LOG.md.
    large = [leaf for leaf in jax.tree.leaves(state.cache) if nbytes(leaf) >= 1 << 20]
    tiers = [leaf for leaf in large if fills_lanes(leaf)]
    weight_copies = whole_copies(hlo, params)
    return {
        "plan_bytes": policy.plan.kv_bytes * batch,
        "cache_bytes": sum(map(nbytes, jax.tree.leaves(state.cache))),
        "cache_argument_bytes": looked_at.memory_analysis().argument_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
        "weight_bytes": sum(map(nbytes, jax.tree.leaves(params))),
        "layer_bytes": policy.plan.kv_bytes * batch // config.layers,
        "activation_bytes": activation_bytes(config, batch),
        "unaligned_bytes": unaligned_bytes(large),
        "kernels": hlo.count("tpu_custom_call"),
        "tier_copies": whole_copies(hlo, tiers),
        "weight_copies": weight_copies,
        "weight_copy_bytes": copied_bytes(weight_copies, params),
    }


def activation_bytes(config: ModelConfig, batch: int) -> int:
    """What one token of every sequence needs beside weights and cache: float32, and each kind twice.

    Kinds are logits, the residual stream and its norm, both halves of the MLP, queries, outputs, keys and values.
    """
    attention = config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    return 2 * 4 * batch * (config.vocab + 2 * config.hidden + 2 * config.mlp + attention)


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
