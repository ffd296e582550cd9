# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles the kernel of window mass for GPUs that are not there and prints what it takes, one line of JSON a shape.

    python -m tests.gpu.compile_prefill '["llama-3.1-8b-last32"]' sm_80 sm_90

Names are those of `MODEL_SPECS`. A process of its own: a failed compilation may take the process along.
"""

import json
import sys
from functools import partial

from benchmarks.gpu_compile import compile_module, triton_module
from pallas_kernels.prefill_window_mass.arg_specs import MODEL_SPECS, abstract_args, static_args
from pallas_kernels.prefill_window_mass.pallas_gpu import STAGES, WARPS, prefill_window_mass

if __name__ == "__main__":
    for name in json.loads(sys.argv[1]):
        spec = MODEL_SPECS[name]
        module = triton_module(partial(prefill_window_mass, **static_args(spec)), abstract_args(spec))
        for device in sys.argv[2:]:
            machine = compile_module(module, device, WARPS, STAGES)
            found = {"registers": machine.registers, "spills": machine.spills, "shared": machine.shared}
            print(json.dumps({"name": name, "device": device, "stack": machine.stack, **found}))
