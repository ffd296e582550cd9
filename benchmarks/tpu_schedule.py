# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Cycles of a TPU kernel without a TPU: the instruction bundles of its final schedule, times how often each is issued.

libtpu writes the schedule of a compiled kernel (``--xla_jf_dump_llo_text``): one line a bundle, one bundle a cycle
unless memory is late. A bundle counts as often as control flow reaches it:

- The grid is a loop, and so are loops in the kernel. Their trip counts stand in the schedule. The grid's loop takes two
  turns more than the grid has steps, because copies run ahead.
- The kernel does one of four things in a step, each under a condition: sinks and ring (the first step of a sequence), a
  block of full windows, a block of quantized windows, output and masses (the last step). They follow each other in the
  schedule, and each counts as often as the grid has such steps.
- All else under a condition, which is the handling of copies, counts in every turn: more than is issued.

What XLA does around the kernel (queries in their rows, about 0.1 MB) is not counted.
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tpu_compile import NO_TPU
from pallas_kernels.tiered_decode_attention.arg_specs import DecodeSpec, abstract_args, static_args
from pallas_kernels.tiered_decode_attention.pallas_tpu import kernel_shape

KERNEL = "tiered_decode_attention"
_DELAY_SLOTS = 4  # bundles after a branch that are issued either way

_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s*(LB|LH|LE|PB|PF|CT)?\s*:\s*>*\s*\{")
_LOOP_TEST = re.compile(r"(%p\S+) = scmp\.ge\.s32\.totalorder %\S+, (\d+) /\* loop exit test \*/")
_BRANCH = re.compile(r"sbr\.rel \((!?)(%p[^)]+)\) target = \$region(\d+)")
_EMPTY_REGION = re.compile(r"Start/End empty region (\d+)")


@dataclass(frozen=True)
class Chip:
    """Topology to compile for, bytes per second from HBM to one core and its clock in Hz."""

    topology: str
    bandwidth: float
    clock: float


# Bandwidths from cloud.google.com/tpu/docs (v7x: half a chip). Clocks follow from peak bfloat16 FLOP/s there: 4 matrix
# units of 128 x 128 (v5e) or 256 x 256 multipliers a core, two operations each.
CHIPS = {
    "v5e": Chip("v5e:2x2", 819e9, 197e12 / (4 * 128**2 * 2)),
    "v6e": Chip("v6e:2x2", 1640e9, 918e12 / (4 * 256**2 * 2)),
    "v7x": Chip("tpu7x:2x2x1", 3690e9, 1153e12 / (4 * 256**2 * 2)),
}


@dataclass(frozen=True)
class Region:
    """Bundles ``start`` to ``stop - 1``."""

    start: int
    stop: int

    def __contains__(self, index: int) -> bool:
        return self.start <= index < self.stop


class Schedule:
    """A kernel's final bundles.

    Args:
        text: content of ``*final_bundles.txt``.

    Raises:
        ValueError: a loop has no constant trip count, or a branch no target.
    """

    def __init__(self, text: str) -> None:
        self.bundles: list[str] = []
        labels = []
        for line in text.splitlines():
            match = _BUNDLE.match(line)
            if match:
                self.bundles.append(line)
                labels.append(match[1])
            elif self.bundles:
                self.bundles[-1] += line  # a comment over several lines
        self.loops: list[tuple[Region, int]] = []
        self.conditional: list[Region] = []
        open_loops: list[int] = []
        tests: dict[str, int] = {}
        ends: dict[str, int] = {}
        branches = []
        for index, bundle in enumerate(self.bundles):
            if labels[index] == "LB":
                open_loops.append(index)
            tests |= {name: int(count) for name, count in _LOOP_TEST.findall(bundle)}
            for number in _EMPTY_REGION.findall(bundle):
                ends.setdefault(number, index)
            for negated, name, number in _BRANCH.findall(bundle):
                if negated and name in tests:
                    stop = min(index + _DELAY_SLOTS + 1, len(self.bundles))
                    self.loops.append((Region(open_loops.pop(), stop), tests[name]))
                else:
                    branches.append((index, number))
        if open_loops:
            raise ValueError(f"{len(open_loops)} loops have no trip count in the schedule")
        for index, number in branches:
            if number not in ends:
                raise ValueError(f"the branch in bundle {index} leads nowhere in the schedule")
            self.conditional.append(Region(index + _DELAY_SLOTS + 1, ends[number]))

    def phases(self) -> list[Region]:
        """What the kernel does under a condition: the innermost conditional regions with an exponential in them."""
        working = [r for r in self.conditional if any("vpow2" in b for b in self.bundles[r.start : r.stop])]
        outer = [r for r in working if any(r != other and other.start in r for other in working)]
        return sorted((r for r in working if r not in outer), key=lambda r: r.start)

    def issued(self, counts: list[int]) -> list[int]:
        """How often each bundle is issued, if the phases run ``counts`` times.

        Raises:
            ValueError: the schedule has another number of phases.
        """
        phases = self.phases()
        if len(phases) != len(counts):
            raise ValueError(f"{len(phases)} phases in the schedule, {len(counts)} expected")
        times = []
        for index in range(len(self.bundles)):
            phase = next((i for i, region in enumerate(phases) if index in region), None)
            around = [(r, trips) for r, trips in self.loops if index in r]
            if phase is not None:
                around = [(r, trips) for r, trips in around if r.start in phases[phase]]
            times.append(math.prod(trips for _, trips in around) * (1 if phase is None else counts[phase]))
        return times


def busy_units(utilization: str, times: list[int]) -> dict[str, float]:
    """Bundles that each unit alone would need, from ``*per-bundle-utilization.txt``: slots used by slots there are."""
    _, names, capacity, _, *rows = utilization.splitlines()
    units = [name.strip() for name in names.split(",")]
    used = [0] * len(units)
    for row, count in zip(rows, times, strict=True):
        used = [total + count * int(x) for total, x in zip(used, row.split(), strict=True)]
    return {unit: total / int(slots) for unit, total, slots in zip(units, used, capacity.split(), strict=True)}


def measure(device: str, spec: DecodeSpec) -> dict[str, Any]:
    """Compiles the decode attention kernel and counts one sequence of a batch of one.

    Args:
        device: a key of `CHIPS`.
        spec: the shape; it must have quantized windows.

    Raises:
        RuntimeError: it does not compile.
    """
    chip = CHIPS[device]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            **NO_TPU,
            "LIBTPU_INIT_ARGS": f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true",
        }
        command = [sys.executable, "-m", "benchmarks.tpu_compile", chip.topology, json.dumps(asdict(spec))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"does not compile for {chip.topology}: {done.stderr[-2000:]}")

        def dumped(ending: str) -> str:
            found = [path for path in Path(folder).glob(f"*{KERNEL}*{ending}") if "schedule-analysis" not in path.name]
            return found[0].read_text()

        schedule = Schedule(dumped("final_bundles.txt"))
        utilization = dumped("final_hlo-static-per-bundle-utilization.txt")
    q, _, _, tiers, _, _, key_bias = abstract_args(spec)
    static = {name: value for name, value in static_args(spec).items() if name != "ring"}
    shape = kernel_shape(q, tiers, key_bias, **static)
    counts = [1, *([shape.full_blocks] if spec.F else []), shape.blocks, 1]
    times = schedule.issued(counts)
    units = busy_units(utilization, times)
    whole = spec.Q * spec.K
    block = schedule.phases()[-2]
    vector = {unit: total for unit, total in units.items() if ":" not in unit}
    busiest = max(vector, key=lambda unit: vector[unit])
    return {
        "kernel": KERNEL,
        "device": device,
        "bits": spec.bits,
        "param_bits": spec.param_bits,
        "window": spec.W,
        "head_dim": spec.D,
        "kv_heads": spec.K,
        "groups": spec.G,
        "query_tokens": spec.T,
        "windows": spec.Q,
        "full_windows": spec.F,
        "bias": bool(spec.bias),
        "bundles_per_window": round(sum(times) / whole, 3),
        "block_bundles_per_window": round(sum(times[block.start : block.stop]) / whole, 3),
        "busiest_unit": busiest,
        "busiest_unit_per_window": round(vector[busiest] / whole, 3),
        "code_bundles": len(times),
        "bf16_cycles_per_window": round(spec.W * 2 * spec.D * 2 / (chip.bandwidth / chip.clock), 2),
    }
