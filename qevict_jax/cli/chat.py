# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict chat MODEL`: a conversation on one compressed cache."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qevict_jax.cli.options import OneRowMesh, cache_options, check_one_row, sampling_options
from qevict_jax.cli.report import size, summary
from qevict_jax.config import CacheConfig
from qevict_jax.sampling import Sampling
from qevict_jax.types import QEvictError

if TYPE_CHECKING:
    from qevict_jax.session import Session


@sampling_options
@cache_options
def run(
    model: Annotated[Path, typer.Argument(help="Converted checkpoint with a chat template.")],
    max_context: Annotated[int, typer.Option(help="Tokens that the whole conversation may reach.")] = 4096,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens of one answer.")] = 512,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends an answer; repeatable.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Compute in float32, bfloat16 or float16; default float32 on a CPU.")
    ] = None,
    mesh: OneRowMesh = None,
    *,
    cache: CacheConfig,
    sampling: Sampling,
) -> None:
    """Talks with a model; its compressed cache is kept between turns. Ctrl-C ends an answer, /exit the conversation."""
    if max_new_tokens < 1:
        raise QEvictError(f"max_new_tokens={max_new_tokens} must be at least 1")
    check_one_row(mesh)
    from qevict_jax.models import load_model
    from qevict_jax.session import Session

    loaded = load_model(model, dtype, mesh=mesh)
    session = Session(loaded, cache=cache, sampling=sampling, max_context=max_context, system=system)
    typer.echo(
        f"[{size(session.plan.kv_bytes)} for {max_context:,} tokens, {session.plan.ratio:.1%} of the full cache; "
        "/exit or end of input ends]",
        err=True,
    )
    while (text := _read()) is not None:
        if text.strip():
            _answer(session, text, max_new_tokens, stop or [])


def _read() -> str | None:
    """The next message, None at the end of the conversation."""
    while True:
        try:
            text = input("> ")
        except EOFError:
            typer.echo()
            return None
        except KeyboardInterrupt:
            typer.echo("\n[/exit or end of input ends the conversation]", err=True)
            continue
        return None if text.strip() == "/exit" else text


def _answer(session: "Session", text: str, max_new_tokens: int, stop: list[str]) -> None:
    try:
        pieces = session.send(text, max_new_tokens=max_new_tokens, stop=stop)
    except QEvictError as error:  # the conversation stands as it was
        typer.echo(f"error: {error}", err=True)
        return
    before = session.result
    try:
        for piece in pieces:
            typer.echo(piece, nl=False)
    except KeyboardInterrupt:
        typer.echo(" [interrupted]", nl=False)
    typer.echo()
    if session.result is not None and session.result is not before:  # else nothing was drawn
        typer.echo(summary(session.result), err=True)
