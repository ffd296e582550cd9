# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles generation programs for a TPU slice that is not there and prints what its devices tell each other.

python -m tests.tpu.compile_mesh '{"model": "llama-3.1-8b", "topology": "v5e:2x4", "mesh": "model=8", ...}'
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from qevict_jax.config import CacheConfig
from qevict_jax.decode_state import DecodeState
from qevict_jax.decoding import Decoder
from qevict_jax.mesh import DeviceMesh, MeshShape
from qevict_jax.models.partition import local_config
from qevict_jax.models.steps import Program, abstract_params
from qevict_jax.policies import make_policy
from qevict_jax.sampling import Filters, Numbers, Sampling
from qevict_jax.sharded_programs import shard_program
from tests.shapes import SHAPES
from tests.tpu.hlo import collectives, nbytes, whole_copies

OUTPUT = 256


def measure(
    model: str, topology: str, mesh: str, programs: list[str], cache: dict[str, Any], total: int, batch: int
) -> Iterator[dict[str, Any]]:
    """Compiles programs of `Decoder`, the decode state donated; parameters are bfloat16.

    Args:
        model: a name in `SHAPES`.
        topology: e.g. "v5e:2x4".
        mesh: e.g. "data=2,model=4".
        programs: "read", "token", "event" or "block".
        cache: the preset under "preset", other keys are changes to it.
        total: tokens of prompt and output.
        batch: sequences on the whole slice.
    """
    config, changes = SHAPES[model], dict(cache)
    preset = getattr(CacheConfig, changes.pop("preset"))
    chips = topologies.get_topology_desc(topology, platform="tpu").devices
    devices = DeviceMesh.make(MeshShape.parse(mesh), config.kv_heads, chips)
    split = devices.split
    policy = make_policy(config.kv_shape(), preset(**changes), total, platform="tpu", split=split)
    greedy, one_device = Filters.of(Sampling()), Program.of(local_config(config, split), split.axes)
    decoder = Decoder(one_device, policy, greedy, (2,), OUTPUT, mesh=devices)

    def of_batch(dtype: Any, *axes: int) -> Any:
        return jax.ShapeDtypeStruct((batch, *axes), dtype)

    alone = jax.eval_shape(lambda: policy.init(batch))
    whole = jax.tree.map(lambda x: jax.ShapeDtypeStruct((split.devices, *x.shape), x.dtype), alone)
    count, drawn, active = of_batch(jnp.int32), of_batch(jnp.int32, OUTPUT), of_batch(jnp.bool_)
    state = DecodeState(whole, count, drawn, None, count, active, count)
    params, numbers = abstract_params(config, "bfloat16"), jax.eval_shape(lambda: Numbers.of(*[Sampling()] * batch))
    arguments = {
        "read": (params, of_batch(jnp.int32, total - OUTPUT), count),
        "token": (params, state, numbers),
        "event": (params, state),
        "block": (params, state, numbers),
    }
    mine = jax.eval_shape(lambda: policy.init(batch // devices.shape.data))
    large = [leaf for leaf in jax.tree.leaves(mine) if nbytes(leaf) >= 1 << 20]
    # inside the program, and with the axis of devices in front
    tiers = [*large, *(jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for leaf in large)]
    for name in programs:
        donated = () if name == "read" else (1,)
        jitted = shard_program(devices, policy, name, getattr(decoder, name), arguments[name], donated)
        executable = jitted.lower(*arguments[name]).compile()
        memory, hlo = executable.memory_analysis(), executable.as_text()
        yield {
            "program": name,
            "collectives": collectives(hlo),
            "kernels": hlo.count("tpu_custom_call"),
            "tier_copies": whole_copies(hlo, tiers),
            "plan_bytes": policy.plan.kv_bytes * (batch // devices.shape.data),
            "cache_bytes": sum(map(nbytes, jax.tree.leaves(mine))),
            "alias_bytes": memory.alias_size_in_bytes,
            "temp_bytes": memory.temp_size_in_bytes,
            "peak_bytes": memory.peak_memory_in_bytes,
        }


if __name__ == "__main__":
    for found in measure(**json.loads(sys.argv[1])):
        print(json.dumps(found))
