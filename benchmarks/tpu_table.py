# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Peak memory of decoding and of the prompt pass on TPUs, the full cache beside a budget, from compiled programs.

    python -m benchmarks.tpu_table

Decoding is `Decoder.block`, eight steps and a routing event; the prompt pass reads one row. Each setting is on the
smallest slice of every kind that holds it. The last line is one JSON document.
"""

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.tpu_memory import SLICES, Memory, Question, Slice, memory
from qevict_jax.config import CacheConfig


@dataclass(frozen=True)
class Setting:
    """Sequences that decode together, of ``total`` tokens after a prompt of ``prompt``."""

    total: int
    prompt: int
    batch: int


# the paper's table of efficiency, and long contexts
SETTINGS = (Setting(1280, 256, 32), Setting(32768, 32768, 8), Setting(32768, 32768, 1))


def smallest(kind: str, question: Question) -> tuple[Slice, Memory] | None:
    """The first slice of a kind on which a program compiles, or None."""
    for part in SLICES[kind]:
        found = memory(Question(**{**vars(question), "topology": part.topology, "chips": part.chips}))
        if found.fits:
            return part, found
    return None


def measure(model: str, kind: str, setting: Setting, cache: CacheConfig, prefill: bool) -> dict | None:
    """Decoding, and the prompt pass if asked for, on the smallest slice that holds decoding."""
    asked = Question("block", model, cache, setting.total, setting.batch, "")
    found = smallest(kind, asked)
    if found is None:
        return None
    part, decode = found
    made = {"slice": part.name, "chips": part.chips or 1, "decode": asdict(decode)}
    if prefill:
        read = Question("read", model, cache, setting.total, 1, part.topology, part.chips, setting.prompt)
        made["prefill"] = asdict(memory(read))
    return made


def main(
    model: Annotated[str, typer.Option(help="A name of `NAMED_SHAPES`.")] = "llama-3.1-8b",
    budget: Annotated[float, typer.Option(help="Share of the full cache for the other side.")] = 0.2,
    kinds: Annotated[str, typer.Option(help=f"Kinds of TPU, of {', '.join(SLICES)}.")] = "v5e,v6e,v5p",
    settings: Annotated[str, typer.Option(help="Numbers of the settings, from 0 on.")] = "0,1,2",
    prefill: Annotated[bool, typer.Option(help="The prompt pass too, which takes minutes to compile.")] = True,
) -> None:
    """Prints a table and one line of JSON."""
    caches = {"full": CacheConfig.full(), f"{budget:.0%}": CacheConfig(budget=budget)}
    table = Table("setting", "cache", "slice", "weights", "cache", "decode peak", "of weights + budget", "prefill peak")
    rows = []
    for number in map(int, settings.split(",")):
        setting = SETTINGS[number]
        for kind in kinds.split(","):
            for name, cache in caches.items():
                found = measure(model, kind, setting, cache, prefill)
                rows.append({**asdict(setting), "kind": kind, "cache": name, "found": found})
                table.add_row(f"{setting.total:,} x {setting.batch}", name, *_cells(found, cache))
                print(json.dumps(rows[-1]), flush=True)
    Console(width=120).print(table)
    print(json.dumps({"model": model, "bytes_are": "per chip", "rows": rows}))


def _cells(found: dict | None, cache: CacheConfig) -> list[str]:
    if found is None:
        return ["none of these", *["-"] * 5]
    decode, prefill = found["decode"], found.get("prefill")
    share = 1.0 if cache.budget is None else cache.budget
    planned = decode["weight_bytes"] + share * decode["full_cache_bytes"]
    amounts = (decode[key] for key in ("weight_bytes", "cache_bytes", "peak_bytes"))
    peak = prefill and prefill["peak_bytes"]
    return [
        found["slice"],
        *(f"{amount / 1e9:.2f}" for amount in amounts),
        f"{decode['peak_bytes'] / planned:.3f}",
        f"{peak / 1e9:.2f}" if peak else "too large" if prefill else "-",
    ]


if __name__ == "__main__":
    typer.run(main)
