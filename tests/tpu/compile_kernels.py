# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles the decode attention kernel at real models' shapes for a TPU that is not there, one JSON object a shape.

python -m tests.tpu.compile_kernels v5e:2x2
"""

import json
import sys

import jax

from benchmarks.tpu_compile import compile_decode
from pallas_kernels.tiered_decode_attention.arg_specs import MODEL_SPECS, abstract_args
from tests.tpu.hlo import fills_lanes, nbytes, unaligned_bytes, whole_copies


def main(topology: str) -> None:
    """Prints what each program takes."""
    for name, spec in MODEL_SPECS.items():
        executable = compile_decode(spec, topology)
        memory, hlo = executable.memory_analysis(), executable.as_text()
        assert memory is not None and hlo is not None
        tiers = abstract_args(spec)[3]
        stacks = jax.tree.leaves([tiers.local, tiers.full, tiers.quantized])
        found = {
            "name": name,
            "temp_bytes": memory.temp_size_in_bytes,
            "tier_bytes": sum(map(nbytes, stacks)),
            "tier_copies": whole_copies(hlo, list(filter(fills_lanes, stacks))),
            "unaligned_bytes": unaligned_bytes(stacks),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
