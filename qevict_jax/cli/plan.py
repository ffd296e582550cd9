# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict plan MODEL`: capacities and bytes of a cache, and what fits where. Needs no weights and no device."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from qevict_jax.cli.devices import DEVICES, LONGEST, Device, Fit, fit
from qevict_jax.cli.options import MeshOption, cache_options
from qevict_jax.cli.report import size
from qevict_jax.config import CacheConfig
from qevict_jax.mesh import MeshShape
from qevict_jax.models.config import NAMED_SHAPES, ModelConfig
from qevict_jax.models.key_map import expected_tensors
from qevict_jax.models.partition import local_config, local_numbers
from qevict_jax.plan import CachePlan
from qevict_jax.policies import budget_share, plan_part
from qevict_jax.types import QEvictError

_WEIGHT_BYTES = 2  # bfloat16


@cache_options
def run(
    model: Annotated[
        str,
        typer.Argument(help=f"Checkpoint, Hugging Face directory, GGUF file, or one of {', '.join(NAMED_SHAPES)}."),
    ],
    context: Annotated[int, typer.Option(help="Tokens of each sequence, prompt and output.")] = 32768,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1,
    mesh: MeshOption = None,
    margin: Annotated[float, typer.Option(help="Share of device memory kept for activations and the runtime.")] = 0.1,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON on the last line.")] = False,
    *,
    cache: CacheConfig,
) -> None:
    """Shows what a cache would hold and cost, by part, and what fits on each kind of device next to the full cache."""
    if batch < 1:
        raise QEvictError(f"batch={batch} must be at least 1")
    if not 0 <= margin < 1:
        raise QEvictError(f"margin={margin} must lie in 0 .. 1")
    config, shape = model_config(model), MeshShape.parse(mesh or "data=1")
    if batch % shape.data:
        raise QEvictError(f"batch={batch} does not go evenly onto mesh {shape}")
    split = shape.split_heads(config.kv_heads)
    part = local_config(config, split)
    weights = _WEIGHT_BYTES * local_numbers(config, split)
    each = plan_part(part.kv_shape(), cache, context, 1, split.devices)
    plan, share = each.on(split.devices), budget_share(cache, split.devices)
    fits = {device.name: _fits(device, part, share, weights, margin, context, batch, shape) for device in DEVICES}
    console = Console()
    console.print(_capacities(model, plan, weights, batch, shape))
    console.print(_parts(plan, batch))
    console.print(_devices(fits, config, weights, context, batch, margin, shape))
    if as_json:
        document = {
            "model": model,
            "context": context,
            "batch": batch,
            "mesh": asdict(shape),
            "weight_bytes_per_device": weights,
            "kv_bytes_per_device": each.kv_bytes * batch // shape.data,
            "weight_bytes": _WEIGHT_BYTES * sum(map(math.prod, expected_tensors(config).values())),
            "cache": asdict(cache),
            "capacities": dict(plan.capacities),
            "kv_bytes": plan.kv_bytes,
            "full_kv_bytes": plan.full_kv_bytes,
            "ratio": plan.ratio,
            "parts": dict(plan.parts),
            "devices": {
                name: pair and {key: asdict(value) for key, value in pair.items()} for name, pair in fits.items()
            },
        }
        typer.echo(json.dumps(document))


def model_config(model: str) -> ModelConfig:
    """The configuration of a named shape, a checkpoint, a Hugging Face directory or a GGUF file.

    Raises:
        QEvictError: it is none of these.
    """
    if model in NAMED_SHAPES:
        return NAMED_SHAPES[model]
    path = Path(model)
    if path.is_file():
        from convert.conversion import open_source

        return open_source(path).config
    if not path.is_dir():
        raise QEvictError(f"{model} is neither a directory nor a file nor one of {', '.join(NAMED_SHAPES)}")
    from qevict_jax.models.tokenizer import read_json

    content = read_json(path / "config.json")
    if not content:
        raise QEvictError(f"{model} has no config.json, so it is no model directory")
    return ModelConfig.from_json(content) if "format" in content else ModelConfig.from_hf(content)


def _fits(
    device: Device,
    config: ModelConfig,
    cache: CacheConfig,
    weights: int,
    margin: float,
    context: int,
    batch: int,
    mesh: MeshShape,
) -> dict[str, Fit] | None:
    room = int(device.memory * (1 - margin)) - weights
    if room <= 0:
        return None
    caches = {"full": CacheConfig.full(cache.kv_dtype), "cache": cache}
    found = {
        key: fit(device, room, config.kv_shape(), value, context, batch // mesh.data) for key, value in caches.items()
    }
    return {key: replace(value, largest_batch=value.largest_batch * mesh.data) for key, value in found.items()}


def _capacities(model: str, plan: CachePlan, weights: int, batch: int, mesh: MeshShape) -> Table:
    table = _table(f"{model}, {plan.total_len:,} tokens, batch {batch}", "", "")
    for name, count in plan.capacities:
        table.add_row(name, f"{count:,}")
    table.add_row("KV cache", size(batch * plan.kv_bytes))
    table.add_row("full KV cache", size(batch * plan.full_kv_bytes))
    table.add_row("ratio", f"{plan.ratio:.2%}")
    if (devices := mesh.data * mesh.model) > 1:
        table.add_row(f"KV cache on each of {devices} devices", size(batch * plan.kv_bytes // devices))
    table.add_row("weights in bfloat16" + (" on each" if devices > 1 else ""), size(weights))
    return table


def _parts(plan: CachePlan, batch: int) -> Table:
    table = _table("bytes by part", "part", "bytes", "share")
    for name, count in plan.parts:
        if count:
            table.add_row(name, f"{batch * count:,}", f"{count / plan.kv_bytes:.2%}")
    table.add_row("sum", f"{batch * plan.kv_bytes:,}", "100%")
    return table


def _devices(
    fits: dict, config: ModelConfig, weights: int, context: int, batch: int, margin: float, mesh: MeshShape
) -> Table:
    table = _table(
        f"{'one device' if mesh == MeshShape() else f'each device of {mesh}'}: its memory, less {margin:.0%}, less "
        "weights",
        "device",
        "memory",
        f"longest context,\nbatch {batch}",
        "with the\nfull cache",
        f"largest batch,\n{context:,} tokens",
        "with the\nfull cache",
    )
    for device in DEVICES:
        pair: dict[str, Fit] | None = fits[device.name]
        row = [device.name, f"{device.memory / 1e9:.0f} GB"]
        if pair is None:
            row += ["-"] * 4
        else:
            ours, full = pair["cache"], pair["full"]
            row += [_tokens(ours.longest_context, config), _tokens(full.longest_context, config)]
            row += [f"{ours.largest_batch:,}", f"{full.largest_batch:,}"]
        table.add_row(*row)
    notes = [f"{name}: weights of {size(weights)} do not fit" for name, pair in fits.items() if pair is None]
    notes.append(f"GB = 10^9 bytes; * is beyond the {config.max_position:,} tokens that the model was made for")
    table.caption = "\n".join(notes)
    return table


def _tokens(count: int, config: ModelConfig) -> str:
    more = ">= " if count == LONGEST else ""
    return f"{more}{count:,}{'*' if count > config.max_position else ''}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, show_header=any(columns), title_justify="left", caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table
