# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict serve MODEL`: an OpenAI-compatible server."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from qevict_jax.cli.options import MeshOption, cache_options
from qevict_jax.cli.report import size
from qevict_jax.config import CacheConfig
from qevict_jax.types import QEvictError


@cache_options
def run(
    model: Annotated[Path, typer.Argument(help="Converted checkpoint.")],
    name: Annotated[
        str | None, typer.Option(help="Name that clients ask for; default that of the checkpoint's directory.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    slots: Annotated[int, typer.Option(help="Requests that decode at once.")] = 8,
    max_context: Annotated[int, typer.Option(help="Tokens of prompt and answer of a request.")] = 4096,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="The most tokens of an answer; default what the context leaves.")
    ] = None,
    queue_limit: Annotated[int, typer.Option(help="Requests that may wait for a slot; more are refused.")] = 64,
    grace: Annotated[float, typer.Option(help="Seconds that running requests have to end after a signal.")] = 10.0,
    warm_up: Annotated[
        bool, typer.Option("--warm-up/--no-warm-up", help="Compile for prompts of all sizes before listening.")
    ] = True,
    dtype: Annotated[
        str | None, typer.Option(help="Compute in float32, bfloat16 or float16; default float32 on a CPU.")
    ] = None,
    mesh: MeshOption = None,
    *,
    cache: CacheConfig,
) -> None:
    """Serves completions and chat completions on /v1, with /metrics and /health, until SIGINT or SIGTERM."""
    missing = [package for package in ("starlette", "uvicorn", "prometheus_client") if find_spec(package) is None]
    if missing:
        raise QEvictError(f"serving needs {', '.join(missing)}: pip install 'qevict_jax[serve]'")
    from qevict_jax.models import load_model
    from qevict_jax.server import make_server

    server = make_server(
        load_model(model, dtype, mesh=mesh),
        name or model.resolve().name,
        cache,
        host=host,
        port=port,
        slots=slots,
        max_context=max_context,
        max_new_tokens=max_new_tokens,
        queue_limit=queue_limit,
        grace=grace,
        warm_up=warm_up,
        announce=lambda url: typer.echo(f"serving on {url}"),
    )
    plan = server.plan
    typer.echo(
        f"[KV cache of {slots} x {max_context:,} tokens: {size(slots * plan.kv_bytes)}, {plan.ratio:.1%} of the full "
        "cache]",
        err=True,
    )
    server.run()
    if server.failed:
        raise QEvictError("the engine has failed; the log above says why")
