# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Cost of the decode attention kernel on an NVIDIA GPU without a GPU: the instructions of its machine program.

Counted is the loop over quantized windows, as warp instructions per window and KV head: all warps of a program run it
for each block of windows, and for windows of more than eight tokens once for every eight. A chip issues one such
instruction a cycle on each of the four parts of a multiprocessor, so the time in which it could stream the same window
in bfloat16 is a number of instructions too: the break-even.
"""

from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_compile import compile_module, decode_module
from benchmarks.sass import count
from pallas_kernels.packing import planes
from pallas_kernels.quantized_windows import scalars_per_head
from pallas_kernels.tiered_decode_attention.arg_specs import DecodeSpec
from pallas_kernels.tiered_decode_attention.gpu_quantized import TOKENS
from pallas_kernels.tiered_decode_attention.gpu_splits import QUANTIZED_BLOCK
from pallas_kernels.tiered_decode_attention.pallas_gpu import WARPS, stages


@dataclass(frozen=True)
class Chip:
    """Multiprocessors, boost clock in Hz and bytes per second from memory, from NVIDIA's data sheets."""

    name: str
    multiprocessors: int
    clock: float
    bandwidth: float

    @property
    def issue_rate(self) -> float:
        """Warp instructions per second."""
        return self.multiprocessors * 4 * self.clock


CHIPS = {
    "sm_80": Chip("A100 80GB", 108, 1.41e9, 2.0e12),
    "sm_89": Chip("L40S", 142, 2.52e9, 0.864e12),
    "sm_90": Chip("H100 SXM", 132, 1.755e9, 3.35e12),
    "sm_100": Chip("B200", 148, 1.965e9, 8.0e12),
}


def measure(device: str, spec: DecodeSpec) -> dict[str, Any]:
    """Instructions per window and KV head, registers, spills and shared memory of the kernel at a shape."""
    chip = CHIPS[device]
    machine = compile_module(decode_module(spec), device, stages=stages(spec.W, spec.D, spec.kv_dtype))
    each = max(1, spec.W // TOKENS) * WARPS / QUANTIZED_BLOCK
    body = machine.loop()
    kinds, quarter = count(body)
    break_even = chip.issue_rate / (chip.bandwidth / dense_bytes(spec))
    return {
        "device": device,
        "chip": chip.name,
        "bits": spec.bits,
        "param_bits": spec.param_bits,
        "window": spec.W,
        "head_dim": spec.D,
        "groups": spec.G,
        "instructions_per_window": len(body) * each,
        "classes": {kind: number * each for kind, number in kinds.most_common()},
        "quarter_rate": {name: number * each for name, number in quarter.most_common()},
        "bfloat16_break_even": break_even,
        "fraction_of_break_even": len(body) * each / break_even,
        "bytes_per_window": quantized_bytes(spec),
        "bfloat16_bytes_per_window": dense_bytes(spec),
        "registers": machine.registers,
        "spills": machine.spills,
        "shared_bytes": machine.shared,
    }


def dense_bytes(spec: DecodeSpec) -> int:
    """Bytes of a window and KV head in bfloat16."""
    return spec.W * 2 * spec.D * 2


def quantized_bytes(spec: DecodeSpec) -> int:
    """The same as codes and parameters."""
    codes = 2 * spec.D * sum(plane.bytes_per_channel for plane in planes(spec.bits, spec.W))
    return codes + spec.D * 2 * spec.param_bits // 8 + 2 * scalars_per_head(spec.W, spec.param_bits)
