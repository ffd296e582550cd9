# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of generation compiled for TPUs that are not there: one chip, or a slice whose chips share the model."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import PartitionSpec, SingleDeviceSharding

from qevict_jax.cache import nbytes
from qevict_jax.config import CacheConfig
from qevict_jax.decode_state import Rows
from qevict_jax.decoding import DONATED, Decoder
from qevict_jax.head_split import ONE_DEVICE
from qevict_jax.mesh import DeviceMesh, MeshShape
from qevict_jax.models.config import ModelConfig
from qevict_jax.models.partition import local_config, padded_shape, param_specs
from qevict_jax.models.steps import Program, abstract_params
from qevict_jax.policies import Policy, make_policy
from qevict_jax.sampling import Filters, Sampling
from qevict_jax.sharded_programs import shard_program

_OUTPUT = 256  # tokens drawn: a buffer of a few kilobytes
_EOS = (2,)


class TpuProgram(NamedTuple):
    """A program with what it was compiled for; bytes are those of one chip.

    Attributes:
        executable: the program.
        policy: that of one chip.
        params: abstract parameters of one chip.
        cache: abstract cache of one chip.
    """

    executable: jax.stages.Compiled
    policy: Policy
    params: Any
    cache: Any

    @property
    def weight_bytes(self) -> int:
        """Of the parameters."""
        return nbytes(self.params)

    @property
    def cache_bytes(self) -> int:
        """Of the cache."""
        return nbytes(self.cache)

    @property
    def full_cache_bytes(self) -> int:
        """Of a full cache in its place."""
        return self.policy.plan.full_kv_bytes * self.cache.length.shape[0]


def compile_program(
    name: str,
    config: ModelConfig,
    cache: CacheConfig,
    total: int,
    batch: int,
    topology: str,
    shape: MeshShape | None = None,
    prompt: int | None = None,
) -> TpuProgram:
    """Compiles a program of `Decoder`, its cache donated, parameters in bfloat16.

    Args:
        name: of the program.
        config: the model.
        cache: how the cache is held.
        total: tokens of prompt and output.
        batch: rows.
        topology: e.g. "v5e:2x4".
        shape: of the mesh; without, one chip of the topology.
        prompt: tokens of a prompt for "read", default ``total``.
    """
    devices = topologies.get_topology_desc(topology, platform="tpu").devices
    mesh = None if shape is None else DeviceMesh.make(shape, config.kv_heads, devices)
    split = ONE_DEVICE if mesh is None else mesh.split
    policy = make_policy(config.kv_shape(), cache, total, platform="tpu", split=split)
    program = Program.of(config) if mesh is None else Program.of(local_config(config, mesh.split), mesh.split.axes)
    decoder = Decoder(program, policy, Filters.of(Sampling()), _EOS, _OUTPUT, mesh=mesh)
    params = abstract_params(config, "bfloat16")
    if mesh is not None:
        params = jax.tree.map(partial(_padded, mesh), params, param_specs(params))
    arguments = _arguments(name, decoder, params, prompt or total, batch)
    function, donated = getattr(decoder, name), DONATED[name]
    if mesh is None:
        chip = SingleDeviceSharding(devices[0])
        arguments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=chip), arguments)
        jitted, rows = jax.jit(function, donate_argnums=donated), batch
    else:
        jitted = shard_program(mesh, policy, name, function, arguments, donated)
        params = jax.tree.map(partial(_part, mesh), params, param_specs(params))
        rows = batch // mesh.shape.data if len(mesh.rows(batch)) else batch
    local_cache = jax.eval_shape(lambda: policy.init(rows))
    return TpuProgram(jitted.lower(*arguments).compile(), policy, params, local_cache)


def _arguments(name: str, decoder: Decoder, params: Any, prompt: int, batch: int) -> tuple:
    """Abstract arguments of a program, those of all devices."""

    def rows(count: int) -> Rows:
        made = jax.eval_shape(lambda: decoder.empty(count))
        if decoder.mesh is None:
            return made
        devices = decoder.mesh.split.devices
        cache = jax.tree.map(lambda x: jax.ShapeDtypeStruct((devices, *x.shape), x.dtype), made.state.cache)
        return made._replace(state=replace(made.state, cache=cache))

    def integers(*axes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(axes, jnp.int32)

    if name == "read":
        return params, integers(batch, prompt), integers(batch)
    running = rows(batch)
    if name == "insert":
        return running, rows(1), integers(), integers()
    return (params, running.state) if name == "event" else (params, running.state, running.numbers)


def _padded(mesh: DeviceMesh, leaf: jax.ShapeDtypeStruct, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(padded_shape(leaf.shape, spec, mesh), leaf.dtype)


def _part(mesh: DeviceMesh, leaf: jax.ShapeDtypeStruct, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(mesh.sharding(spec).shard_shape(leaf.shape), leaf.dtype)
