# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""End-to-end efficiency after the paper's Appendix H: caches against the full cache, in turns, in one run.

    python -m benchmarks.efficiency --model CONVERTED --prompts 4096,8192 --batches 1,8

Measured of every cache, for every length and batch, in rounds in which each has its turn: time to first token of one
call that reads ``--together`` prompts; time per output token of the whole batch and its throughput (eq. 10, where the
batch begins to decode when all its prompts have been read); the routing event by itself, per token (eq. 11); and peak
memory. If fewer prompts are read than the batch has rows, their rows are copied into the other slots, and reading
counts as often as it would take. Prompts are random ids: no time depends on them.

Peak memory is the compiler's account of the larger program, weights and batch included, which means the same on every
backend; ``resident`` is what the process really held at most (CPU on Linux only), its programs and Python included.
On a machine that others use too, compare ``decode_cpu_vs_full`` of the JSON, a ratio of processor times (CPU only).

``--shape llama-3.1-8b`` takes random weights of a known model instead of a checkpoint. ``--peer transformers`` adds
transformers' DynamicCache, with random weights of the same model and dtype, and needs an environment with torch.
Ratios are to the full cache in the same round. The last line of standard output is one JSON document.

The paper's setting, on a device with 24 GB or more:

    python -m benchmarks.efficiency --shape llama-3.1-8b --prompts 256 --outputs 1024 --batches 32 --together 32
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.efficiency_sides import Ours, Peer, Side
from pallas_kernels.implementation import IMPLEMENTATIONS
from qevict_jax import LanguageModel, QEvictError, load
from qevict_jax.config import KV_DTYPES, POLICY_FIELDS
from qevict_jax.evaluation.caches import Cache, parse_caches
from qevict_jax.evaluation.provenance import environment
from qevict_jax.models.config import DTYPES, NAMED_SHAPES
from qevict_jax.models.steps import Program, abstract_params

PEER = "transformers"
CACHES = ["tuned", "tuned quant_fraction=0", "paper", "snapkv", "kivi"]


@dataclass(frozen=True)
class Case:
    """One table.

    Attributes:
        prompt: tokens of a prompt.
        outputs: tokens of an answer.
        batch: rows that decode together.
        together: prompts that are read together.
    """

    prompt: int
    outputs: int
    batch: int
    together: int

    def __post_init__(self) -> None:
        if self.outputs < 2:
            raise QEvictError(f"--outputs {self.outputs}: time per output token needs at least 2")
        if self.together < 1 or self.batch % self.together:
            raise QEvictError(f"--together {self.together} must divide the batch, {self.batch}")


@dataclass(frozen=True)
class Rounds:
    """Turns of each side.

    Attributes:
        warm_up: that do not count, first.
        counted: after them.
        reads: of these, the first ones that read their prompts anew; after them a side decodes rows that it has kept.
    """

    warm_up: int
    counted: int
    reads: int

    def __post_init__(self) -> None:
        if self.warm_up < 0 or not 1 <= self.reads <= self.counted:
            raise QEvictError(f"{self}: there must be at least one read, and no more reads than rounds")


@dataclass
class Times:
    """What one side took, a number per round."""

    ttft_s: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)


def random_weights(shape: str) -> LanguageModel:
    """A model of a known shape, in its own dtype, made on the device."""
    config = NAMED_SHAPES[shape]
    abstract = abstract_params(config, config.dtype)

    def make() -> Any:
        keys = jax.random.split(jax.random.key(0), len(jax.tree.leaves(abstract)))
        keys = jax.tree.unflatten(jax.tree.structure(abstract), list(keys))
        return jax.tree.map(lambda x, key: 0.02 * jax.random.normal(key, x.shape, x.dtype), abstract, keys)

    return LanguageModel(config, Program.of(config), jax.jit(make)())


def with_implementation(cache: Cache, implementation: str) -> Cache:
    """The same cache on a form of attention, if its policy has several and its own settings name none."""
    config = cache.config
    if "implementation" not in POLICY_FIELDS[config.policy] or config.implementation != "auto":
        return cache
    return replace(cache, config=replace(config, implementation=implementation))


def run_rounds(sides: dict[str, Side], prompts: np.ndarray, case: Case, plan: Rounds) -> dict[str, Times]:
    """Turns of all sides, by name."""
    times = {name: Times() for name in sides}
    title = f"{case.prompt} tokens, batch {case.batch}"
    for turn in tqdm(range(-plan.warm_up, plan.counted), desc=title, file=sys.stderr):
        reads, last = turn < plan.reads, turn == plan.counted - 1
        for name, side in sides.items():
            side.restart_peak(sum(other.kept for other in sides.values() if other is not side))
            ttft = side.read(prompts) if reads else None
            # from the last reading on the rows are needed again
            seconds = side.decode(case.batch, keep=turn >= plan.reads - 1 and not last)
            resident = side.resident_peak()
            if turn < 0:
                continue
            times[name].tpot_ms.append(seconds.wall * 1e3 / (case.outputs - 1))
            times[name].cpu_ms.append(seconds.cpu * 1e3 / (case.outputs - 1))
            if ttft is not None:
                times[name].ttft_s.append(ttft)
                times[name].resident += [] if resident is None else [resident]
    return times


def summary(numbers: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(numbers), "min": min(numbers), "max": max(numbers)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Round by round."""
    return summary([a / b for a, b in zip(above, below, strict=True)])


def row(name: str, times: Times, full: Times, case: Case) -> dict[str, Any]:
    """What is reported of a side."""
    ttft, tpot = statistics.median(times.ttft_s), statistics.median(times.tpot_ms) / 1e3
    until_first = ttft * case.batch / case.together
    return {
        "cache": name,
        "ttft_s": summary(times.ttft_s),
        "tpot_ms": summary(times.tpot_ms),
        "cpu_ms_per_step": summary(times.cpu_ms),
        "tokens_per_s": case.batch * case.outputs / (until_first + tpot * (case.outputs - 1)),
        "decode_tokens_per_s": case.batch / tpot,
        "decode_vs_full": ratios(full.tpot_ms, times.tpot_ms),
        "decode_cpu_vs_full": ratios(full.cpu_ms, times.cpu_ms),
        "ttft_vs_full": ratios(times.ttft_s, full.ttft_s),
        "resident_bytes": max(times.resident, default=None),
    }


def measure(model: LanguageModel, caches: Sequence[Cache], case: Case, plan: Rounds, peer: bool) -> dict[str, Any]:
    """One table, as a dictionary."""
    total = case.prompt + case.outputs
    ours = {cache.label: Ours(model, cache.at(total), case.prompt, case.outputs, case.batch) for cache in caches}
    prompts = np.random.default_rng(0).integers(0, model.config.vocab, (case.together, case.prompt))
    bytes_of = {name: side.memory(case.prompt, case.together) for name, side in ours.items()}
    others = {PEER: Peer(model.config, model.dtype, case.outputs)} if peer else {}
    try:
        times = run_rounds({**ours, **others}, prompts, case, plan)
    finally:
        for other in others.values():
            other.close()
    full = times[caches[0].label]
    rows = [row(name, times[name], full, case) for name in times]
    for made, (name, side) in zip(rows, ours.items(), strict=False):  # of the peer no more is known
        steps = side.engine.policy.event_steps
        event = statistics.median(side.event_seconds)
        made |= {"route_ms_per_token": event * 1e3 / steps, "event_steps": steps, "bytes": bytes_of[name]}
        made["config"] = asdict(side.engine.plan.config)
    return {**asdict(case), "peer": [other.version for other in others.values()], "rows": rows}


def show(table: dict[str, Any]) -> None:
    """A table shaped like the paper's Table 4."""
    print("\n{prompt} + {outputs} tokens, batch {batch}, {together} prompts read together".format(**table))
    print(f"{'':34} TTFT s  TPOT ms  tok/s  decode  x full (range)      routing ms  KV MB  peak GB  resident GB")
    for made in table["rows"]:
        versus, size = made["decode_vs_full"], made.get("bytes")
        spread = f"{versus['median']:.2f} ({versus['min']:.2f}-{versus['max']:.2f})"
        resident = made["resident_bytes"]
        cells = [
            f"{made['cache']:34} {made['ttft_s']['median']:6.2f} {made['tpot_ms']['median']:8.1f}",
            f"{made['tokens_per_s']:6.1f} {made['decode_tokens_per_s']:7.1f}  {spread:18}",
            f"{made['route_ms_per_token']:11.2f}" if size else f"{'-':>11}",
            f"{size['kv_per_row'] / 1e6:6.1f} {size['peak'] / 1e9:8.2f}" if size else f"{'-':>6} {'-':>8}",
            f"{'-' if resident is None else format(resident / 1e9, '.2f'):>12}",
        ]
        print(" ".join(cells), flush=True)


def numbers(text: str) -> list[int]:
    """Of a list with commas."""
    return [int(word) for word in text.split(",")]


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", type=Path, help="converted checkpoint")
    what.add_argument("--shape", choices=NAMED_SHAPES, help="random weights of a known model")
    parser.add_argument("--dtype", choices=DTYPES, help="of a checkpoint's weights, default as `load` chooses")
    parser.add_argument("--prompts", type=numbers, default=[4096], help="tokens of a prompt; several with commas")
    parser.add_argument("--outputs", type=int, default=65, help="tokens of an answer")
    parser.add_argument("--batches", type=numbers, default=[1], help="rows that decode together; several with commas")
    parser.add_argument("--together", type=int, default=1, help="prompts that are read together")
    parser.add_argument("--cache", action="append", help=f"preset or policy, FIELD=VALUE ...; default {CACHES}")
    parser.add_argument("--budgets", default="0.2", help="fractions of the full cache; several with commas")
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, help="of stored keys and values; default that of the weights")
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS, default="auto", help="form of the attention")
    parser.add_argument("--peer", choices=[PEER], help="measured too; needs an environment with torch")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each cache")
    parser.add_argument("--reads", type=int, help="rounds that read the prompts anew, default all")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before them that do not count")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Runs every case and prints the tables and the JSON."""
    args = parse(words)
    try:
        if args.peer and jax.default_backend() != "cpu":
            raise QEvictError(f"{args.peer} is measured on the CPU, and JAX runs on {jax.default_backend()} here")
        cases = [Case(prompt, args.outputs, b, args.together) for prompt in args.prompts for b in args.batches]
        plan = Rounds(args.warm_up, args.rounds, args.rounds if args.reads is None else args.reads)
        model = random_weights(args.shape) if args.shape else load(args.model, dtype=args.dtype)
        budgets = [float(budget) for budget in args.budgets.split(",")]
        caches = parse_caches(args.cache or CACHES, budgets, kv_dtype=args.kv_dtype or model.dtype)
        caches = [with_implementation(cache, args.implementation) for cache in caches]
        tables = []
        for case in cases:
            tables.append(measure(model, caches, case, plan, peer=bool(args.peer)))
            show(tables[-1])
    except QEvictError as error:
        sys.exit(f"error: {error}")
    document = {
        "benchmark": "efficiency",
        "model": args.shape or args.model.name,
        "dtype": model.dtype,
        "implementation": args.implementation,
        **asdict(plan),
        **environment(),
        "tables": tables,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
