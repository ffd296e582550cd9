# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict calibrate MODEL`: what KVQuant must know about a model before it can run."""

from pathlib import Path
from typing import Annotated

import typer

from qevict_jax.cli.prompts import read_text
from qevict_jax.cli.report import size
from qevict_jax.quantizers.calibration_file import FILE
from qevict_jax.types import QEvictError


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Converted checkpoint.")],
    text: Annotated[
        Path | None, typer.Option(help="UTF-8 text to read; default: the reference of this Python's language.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Stretches of the text, evenly spaced.")] = 16,
    length: Annotated[int, typer.Option(help="Tokens of each.")] = 2048,
    outliers: Annotated[float, typer.Option(help="Share of the numbers that ranges leave out.")] = 0.01,
    fisher: Annotated[
        bool, typer.Option("--fisher", help="Weigh numbers by squared gradients; takes a backward pass.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help=f"File to write; default: {FILE} in MODEL, where kvquant looks for it.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Compute in float32, bfloat16 or float16; default float32 on a CPU.")
    ] = None,
) -> None:
    """Runs the model on a text and writes ranges and codebooks for --policy kvquant."""
    path = model / FILE if output is None else output
    if not path.absolute().parent.is_dir():
        raise QEvictError(f"{path}: there is no directory {path.parent}")
    content = python_reference() if text is None else read_text(text)
    from qevict_jax.calibration import calibrate
    from qevict_jax.models import load_model

    loaded = load_model(model, dtype)
    if loaded.tokenizer is None:
        raise QEvictError(f"{model} has no tokenizer")
    made = calibrate(
        loaded,
        loaded.tokenizer.encode(content, add_bos=False),
        samples=samples,
        length=length,
        outliers=outliers,
        fisher=fisher,
        progress=True,
    )
    made.save(path)
    weights = "weighted by squared gradients" if fisher else "without Fisher weights"
    typer.echo(f"{path}: {size(path.stat().st_size)}, {samples} x {length} tokens, {weights}, sha256 {made.digest}")


def python_reference() -> str:
    """The text of Python's language reference that comes with the interpreter."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))
