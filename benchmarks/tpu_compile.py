# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles a function for a TPU that is not there, with libtpu (extra ``tpu``).

As a program it compiles the decode attention kernel of one `DecodeSpec`, given as JSON, for a topology:

    python -m benchmarks.tpu_compile v5e:2x2 '{"bits": 2, "D": 128}'

A process of its own: libtpu reads what to dump when it is loaded, and a failed compilation may take the process along.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from pallas_kernels.tiered_decode_attention import pallas_tpu
from pallas_kernels.tiered_decode_attention.arg_specs import DecodeSpec, abstract_args, static_args

# For the environment of such a process: there is no TPU, and no server to ask what machine this is.
NO_TPU = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
}


def compile_for_tpu(function: Callable, args: Any, topology: str) -> jax.stages.Compiled:
    """The program for one chip of ``topology``, e.g. "v5e:2x2"; ``args`` are abstract."""
    chip = SingleDeviceSharding(topologies.get_topology_desc(topology, platform="tpu").devices[0])
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=chip), args)
    return jax.jit(function).lower(*placed).compile()


def compile_decode(spec: DecodeSpec, topology: str) -> jax.stages.Compiled:
    """The decode attention kernel of a shape."""
    function = partial(pallas_tpu.tiered_decode_attention, **static_args(spec))
    return compile_for_tpu(function, abstract_args(spec), topology)


if __name__ == "__main__":
    compile_decode(DecodeSpec(**json.loads(sys.argv[2])), sys.argv[1])
