# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict generate MODEL [PROMPT]`: one answer, streamed to standard output."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qevict_jax.cli.options import OneRowMesh, cache_options, check_one_row, sampling_options
from qevict_jax.cli.prompts import QuestionAware, read_prompt
from qevict_jax.cli.report import summary
from qevict_jax.cli.watch import check_watch, watch
from qevict_jax.config import CacheConfig
from qevict_jax.sampling import Sampling
from qevict_jax.types import QEvictError


@sampling_options
@cache_options
def run(
    model: Annotated[Path, typer.Argument(help="Converted checkpoint.")],
    prompt: Annotated[
        str | None, typer.Argument(help="Text; '-' or nothing reads standard input.", show_default=False)
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the text from a file.")] = None,
    question: Annotated[str | None, typer.Option(help="A question to put after the text.")] = None,
    question_aware: QuestionAware = True,
    chat: Annotated[
        bool | None, typer.Option("--chat/--raw", help="Use the chat template; default if the model has one.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens to draw.")] = 256,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")] = None,
    exact_length: Annotated[
        bool, typer.Option("--exact-length", help="Do not round the cache up to a size that other prompts share.")
    ] = False,
    dtype: Annotated[
        str | None, typer.Option(help="Compute in float32, bfloat16 or float16; default float32 on a CPU.")
    ] = None,
    mesh: OneRowMesh = None,
    distributed: Annotated[
        str | None,
        typer.Option(
            help="This is one of several processes with the same command: 'auto', or HOST:PORT,COUNT,INDEX.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on the last line.")] = False,
    log_probs: Annotated[bool, typer.Option("--log-probs", help="Log-probabilities in the JSON.")] = False,
    live: Annotated[
        bool, typer.Option("--watch", help="Show the tiers of a layer while text comes; needs a terminal.")
    ] = False,
    watch_layer: Annotated[
        int | None, typer.Option(help="The layer of --watch; default the middle one.", show_default=False)
    ] = None,
    *,
    cache: CacheConfig,
    sampling: Sampling,
) -> None:
    """Answers one prompt. The text goes to standard output as it comes, figures to standard error."""
    if log_probs and not as_json:
        raise QEvictError("--log-probs shows nothing without --json")
    if watch_layer is not None and not live:
        raise QEvictError("--watch-layer shows nothing without --watch")
    text, question = read_prompt(prompt, prompt_file, question)
    if question is None and not question_aware:
        raise QEvictError("--question-agnostic needs a text and a --question about it")
    if distributed is not None and mesh is None:
        raise QEvictError("--distributed does nothing without --mesh")
    if live and mesh is not None:
        raise QEvictError("--watch shows the tiers of one device; leave --mesh out")
    check_one_row(mesh)
    from qevict_jax.generate import stream
    from qevict_jax.mesh import join_processes
    from qevict_jax.models import load_model

    speaks = distributed is None or join_processes(distributed) == 0
    loaded = load_model(model, dtype, mesh=mesh)
    shown = check_watch(watch_layer, loaded.config.layers) if live else None
    if chat is None:
        chat = loaded.tokenizer is not None and loaded.tokenizer.has_chat_template
    pieces = stream(
        loaded,
        [{"role": "user", "content": text}] if chat else text,
        cache=cache,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        stop=stop or (),
        log_probs=log_probs,
        buckets=not exact_length,
        question=question,
        question_aware=question_aware,
    )
    for piece in pieces if shown is None else [watch(pieces, shown)]:
        if speaks:
            typer.echo(piece, nl=False)
    assert pieces.result is not None
    if not speaks:
        return
    typer.echo()
    typer.echo(summary(pieces.result), err=True)
    if as_json:
        typer.echo(json.dumps(asdict(pieces.result)))
