# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles the prompt pass for a TPU that is not there and prints what it takes, one line of JSON per program.

    python -m tests.tpu.compile_prefill '[{"model": "smollm2-135m", "topology": "v5e:2x2", "part": "program", ...}]'

A process of its own: libtpu keeps what it once started, and a failed compilation may take the process with it.
"""

import json
import re
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from pallas_kernels.causal_attention.api import causal_attention
from pallas_kernels.prefill_window_mass.api import prefill_window_mass
from pallas_kernels.prefill_window_mass.arg_specs import MassSpec, abstract_args, static_args
from qevict_jax.config import CacheConfig
from qevict_jax.models.steps import Program, abstract_params, prefill
from qevict_jax.policies import make_policy
from tests.shapes import SHAPES
from tests.tpu.hlo import nbytes

_LANES = 128  # of a row in memory: a head_dim of 64 takes twice its bytes
_KERNEL = re.compile(r'custom_call_target="tpu_custom_call"')


def measure(
    model: str,
    topology: str,
    part: str,
    size: int,
    batch: int = 1,
    queries: int = 32,
    layers: int | None = None,
    **cache: Any,
) -> dict[str, Any]:
    """Compiles a part of the prompt pass for one chip.

    Args:
        model: a name in `SHAPES`; everything is bfloat16 and abstract.
        topology: e.g. "v5e:2x2", of which one chip is used.
        part: "program" (all of `steps.prefill`), "attention" (the flash pass of a layer) or "mass" (of its windows).
        size: S, tokens of the prompt.
        batch: B.
        queries: N of "mass".
        layers: another number of layers than the model's.
        **cache: changes to the tuned preset for "program"; "implementation" counts for every part.
    """
    config = SHAPES[model]
    config = replace(config, layers=layers or config.layers)
    chip = SingleDeviceSharding(topologies.get_topology_desc(topology, platform="tpu").devices[0])

    def array(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=chip)

    q, k = (array((batch, size, count, config.head_dim), "bfloat16") for count in (config.heads, config.kv_heads))
    implementation = cache.get("implementation", "auto")
    if part == "program":
        policy = make_policy(config.kv_shape(), CacheConfig.tuned(**cache), size, platform="tpu")
        function = partial(_prefill, Program.of(config), policy)
        params = jax.tree.map(lambda x: array(x.shape, x.dtype), abstract_params(config, "bfloat16"))
        operands = (params, array((batch, size), "int32"), array((batch,), "int32"))
    elif part == "attention":
        function = partial(causal_attention, implementation=implementation)
        operands = (q, k, k)
    else:
        spec = MassSpec(
            S=size,
            queries=queries,
            K=config.kv_heads,
            G=config.heads // config.kv_heads,
            D=config.head_dim,
            lengths=(size,) * batch,
            dtype="bfloat16",
        )
        function = partial(prefill_window_mass, **static_args(spec), implementation=implementation)
        operands = tuple(array(x.shape, x.dtype) for x in abstract_args(spec))
    executable = jax.jit(function).lower(*operands).compile()
    memory = executable.memory_analysis()
    return {
        "kernels": len(_KERNEL.findall(executable.as_text())),
        "q_bytes": nbytes(q) * _LANES * -(-config.head_dim // _LANES) // config.head_dim,
        "temp_bytes": memory.temp_size_in_bytes,
        "peak_bytes": memory.peak_memory_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
    }


def _prefill(program: Program, policy: Any, params: Any, tokens: jax.Array, length: jax.Array) -> tuple:
    return prefill(program, params, policy, tokens, length)


if __name__ == "__main__":
    for asked in json.loads(sys.argv[1]):
        print(json.dumps(asked | measure(**asked)), flush=True)
