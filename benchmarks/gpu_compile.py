# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles Triton kernels for GPUs that are not there, with the triton package (extra ``gpu-compile``).

    python -m benchmarks.gpu_compile tiered_decode_attention sm_90

prints what the machine program of each row of the kernel's table for real models takes, one JSON line a row. A process
of its own: a failed compilation may take the process along. The compiler is Triton's own; XLA has a copy of it, of
about the same age, with another assembler.
"""

import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import jax
from jax.experimental import pallas as pl

from benchmarks.sass import Instruction, parse, quantized_loop
from pallas_kernels.prefill_window_mass import arg_specs as mass_arg_specs
from pallas_kernels.prefill_window_mass import pallas_gpu as mass_gpu
from pallas_kernels.tiered_decode_attention import arg_specs, pallas_gpu
from pallas_kernels.tiered_decode_attention.arg_specs import DecodeSpec, abstract_args, static_args

_SHOWN = "The Triton module for pallas_call"
_LOCATION = re.compile(r' (?:"[^"\n]*"\(#loc\d*\)|\[unknown\]|\(?#loc\d*\)?|"[^"\n]*"\([^()\n]*\))(?=[\n),:]|$)')


@dataclass(frozen=True)
class Machine:
    """A kernel's machine program.

    Attributes:
        instructions: all of it.
        labels: index of the instruction behind each label.
        registers: of a thread.
        stack: bytes of local memory of a thread.
        shared: bytes of shared memory of a block of threads.
    """

    instructions: list[Instruction]
    labels: dict[str, int]
    registers: int
    stack: int
    shared: int

    def loop(self) -> list[Instruction]:
        """What runs for some tokens of each window of a block. Only the decode kernel has it."""
        return quantized_loop(self.instructions, self.labels)

    @property
    def spills(self) -> int:
        """Instructions that move registers to or from local memory."""
        return sum(x.name in ("LDL", "STL") for x in self.instructions)


def decode_module(spec: DecodeSpec) -> str:
    """The decode kernel as Triton's intermediate language."""
    return triton_module(partial(pallas_gpu.tiered_decode_attention, **static_args(spec)), abstract_args(spec))


def decode_rows() -> Iterator[tuple[str, str, int]]:
    """Name, module and stages of the decode kernel at the shapes of real models."""
    for name, spec in arg_specs.MODEL_SPECS.items():
        yield name, decode_module(spec), pallas_gpu.stages(spec.W, spec.D, spec.kv_dtype)


def mass_rows() -> Iterator[tuple[str, str, int]]:
    """The same of the kernel of window mass."""
    for name, spec in mass_arg_specs.MODEL_SPECS.items():
        function = partial(mass_gpu.prefill_window_mass, **mass_arg_specs.static_args(spec))
        yield name, triton_module(function, mass_arg_specs.abstract_args(spec)), mass_gpu.STAGES


KERNELS = {
    "tiered_decode_attention": (decode_rows, pallas_gpu.WARPS),
    "prefill_window_mass": (mass_rows, mass_gpu.WARPS),
}


def triton_module(function: Callable, arguments: tuple) -> str:
    """The one kernel of a function as Triton's intermediate language, without source locations."""
    shown = io.StringIO()
    with mock.patch.object(pl, "pallas_call", partial(pl.pallas_call, debug=True)), redirect_stdout(shown):
        jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    text = shown.getvalue()
    start = text.index("module @", text.index(_SHOWN))
    return _LOCATION.sub("", text[start : text.index("\n}", start) + 3])


def compile_module(module: str, device: str, warps: int = pallas_gpu.WARPS, stages: int = pallas_gpu.STAGES) -> Machine:
    """The machine program for a device, "sm_90" for example; of the decode kernel unless said otherwise.

    Raises:
        ValueError: the module does not compile.
    """
    import triton  # type: ignore[import-not-found]
    from triton._C.libtriton import ir  # type: ignore[import-not-found]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]
    from triton.compiler.compiler import make_backend  # type: ignore[import-not-found]

    capability = int(device.removeprefix("sm_"))
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        source = Path(folder, "kernel.ttir")
        source.write_text(module)
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        try:
            # what is compiled from a file skips the passes of the file's own stage
            parsed = ir.parse_mlir_module(str(source), context)
            parsed.context = context
            source.write_text(str(backend.make_ttir(parsed, {}, backend.parse_options(options), capability)))
            compiled = triton.compile(str(source), target=target, options=options)
        except RuntimeError as error:
            raise ValueError(f"the kernel does not compile for {device}: {error}") from error
        program = Path(folder, "kernel.cubin")
        program.write_bytes(compiled.asm["cubin"])
        tools = triton.knobs.nvidia
        instructions, labels = parse(_run(tools.nvdisasm.path, "-c", program))
        usage = _run(tools.cuobjdump.path, "-res-usage", program)
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", usage)}
    return Machine(instructions, labels, numbers["REG"], numbers["STACK"], compiled.metadata.shared)


def _run(*command: object) -> str:
    return subprocess.run([str(x) for x in command], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    rows, threads = KERNELS[sys.argv[1]]
    machines: dict[str, Machine] = {}  # models of the same shape have the same module
    for row, source, in_flight in rows():
        machine = machines.get(source) or compile_module(source, sys.argv[2], threads, in_flight)
        machines[source] = machine
        usage = {"registers": machine.registers, "spills": machine.spills, "stack": machine.stack}
        usage |= {"shared": machine.shared, "instructions": len(machine.instructions)}
        print(json.dumps({"row": row, "device": sys.argv[2]} | usage), flush=True)
