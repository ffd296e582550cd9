# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict convert SRC DST`."""

from pathlib import Path
from typing import Annotated

import typer


def run(
    src: Annotated[Path, typer.Argument(metavar="SRC", help="Hugging Face model directory, or a GGUF file.")],
    dst: Annotated[Path, typer.Argument(metavar="DST", help="Checkpoint directory to make.")],
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; default: the dtype of the source.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint at DST.")] = False,
) -> None:
    """Converts a model into a checkpoint of qevict_jax, without ever holding it in memory."""
    import jax

    from convert import convert

    # Conversion computes nothing: leave the accelerator, and most of its memory, to others.
    jax.config.update("jax_platforms", "cpu")
    typer.echo(convert(src, dst, dtype=dtype, overwrite=overwrite))
