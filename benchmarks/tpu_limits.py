# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The largest batch and the longest context that TPUs hold, from compiled programs rather than from the formula.

    python -m benchmarks.tpu_limits --slices "v5e 2x2,v6e,v5p"

What fits is what XLA:TPU compiles: it refuses a decode program (`Decoder.block`) that is larger than the memory of the
chip. The program after the limit is compiled too, and was refused. The last line is one JSON document.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.tpu_memory import SLICES, Memory, Question, memory
from qevict_jax.config import CacheConfig

_STEP = 1024  # tokens by which contexts differ
_MANY = 1 << 12  # sequences that no chip holds


def limit(measure: Callable[[int], Memory], hbm_bytes: int, first: int = 1) -> tuple[int, Memory | None]:
    """The largest number that fits, and its memory; the next one does not. 0 and None if 1 does not fit.

    Args:
        measure: the memory of a program for a number, larger for a larger one.
        hbm_bytes: what there is.
        first: the number to begin with.
    """
    low, high, stride = max(1, first), None, 1
    while not (best := measure(low)).fits:
        if low == 1:
            return 0, None
        low, high = max(1, low // 2), low
    while high is None or high - low > 1:
        assert best.peak_bytes is not None and best.weight_bytes is not None
        # all but the weights grows with the number
        expected = int(low * (hbm_bytes - best.weight_bytes) / (best.peak_bytes - best.weight_bytes))
        n = expected
        if not low < n < (high or n + 1):  # from the side that is nearer, in strides that grow
            n, stride = low + stride if n <= low or high is None else high - stride, 2 * stride
        if high is not None and not low < n < high:
            n = (low + high) // 2
        found = measure(n)
        if found.fits:
            low, best = n, found
        else:
            high = n
    return low, best


def main(
    model: Annotated[str, typer.Option(help="A name of `NAMED_SHAPES`.")] = "llama-3.1-8b",
    slices: Annotated[str, typer.Option(help="Names in `tpu_memory.SLICES`.")] = "v5e 2x2,v6e,v5p",
    budgets: Annotated[str, typer.Option(help="Shares of the full cache beside the full cache.")] = "0.2,0.1,0.05",
    context: Annotated[int, typer.Option(help="Tokens of a sequence for the largest batch.")] = 32768,
) -> None:
    """Prints a table and one line of JSON."""
    caches = {"full": CacheConfig.full()}
    caches |= {f"{float(budget):.0%}": CacheConfig(budget=float(budget)) for budget in budgets.split(",")}
    known = {part.name: part for parts in SLICES.values() for part in parts}
    table = Table("slice", "cache", f"largest batch of {context:,}", "GB", "longest context, batch 1", "GB")
    rows = []
    for name in slices.split(","):
        part = known[name]
        asked = Question("block", model, caches["full"], context, _MANY, part.topology, part.chips)
        hbm_bytes = memory(asked).hbm_bytes
        assert hbm_bytes is not None
        for label, cache in caches.items():
            row = _limits(replace(asked, cache=cache), hbm_bytes)
            rows.append({"slice": name, "hbm_bytes": hbm_bytes, "cache": label, **row})
            print(json.dumps(rows[-1]), flush=True)
            table.add_row(name, label, *_cells(row["batch"]), *_cells(row["context"]))
    Console(width=120).print(table)
    print(json.dumps({"model": model, "context_of_batch": context, "bytes_are": "per chip", "rows": rows}))


def _limits(asked: Question, hbm_bytes: int) -> dict:
    """Both limits of a cache on a slice."""
    batch, held = limit(lambda n: memory(replace(asked, batch=n)), hbm_bytes)
    blocks, longest = limit(
        lambda n: memory(replace(asked, batch=1, total=n * _STEP)), hbm_bytes, first=asked.total // _STEP
    )
    return {
        "batch": {"count": batch, "memory": held and asdict(held)},
        "context": {"count": blocks * _STEP, "memory": longest and asdict(longest)},
    }


def _cells(found: dict) -> tuple[str, str]:
    peak = found.get("memory") and found["memory"]["peak_bytes"]
    return f"{found['count']:,}", f"{peak / 1e9:.2f}" if peak else "-"


if __name__ == "__main__":
    typer.run(main)
