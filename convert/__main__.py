# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m convert SRC DST`."""

from pathlib import Path
from typing import Annotated

import jax
import typer

from convert.conversion import convert
from qevict_jax.types import QEvictError


def main(
    src: Annotated[Path, typer.Argument(metavar="SRC", help="Hugging Face model directory, or a GGUF file.")],
    dst: Annotated[Path, typer.Argument(metavar="DST", help="Checkpoint directory to make.")],
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; default: the dtype of the source.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint at DST.")] = False,
) -> None:
    """Converts a model into a checkpoint of qevict_jax, without ever holding it in memory."""
    # Conversion computes nothing: leave the accelerator, and most of its memory, to others.
    jax.config.update("jax_platforms", "cpu")
    try:
        convert(src, dst, dtype=dtype, overwrite=overwrite)
    except (QEvictError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {dst} was not written", err=True)
        raise typer.Exit(130) from None
    typer.echo(dst)


if __name__ == "__main__":
    typer.run(main)
