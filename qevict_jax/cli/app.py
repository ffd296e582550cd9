# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The application: its commands, and how errors reach the user."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from qevict_jax.cli import (
    ablation,
    calibrate,
    chat,
    convert,
    diagnose,
    fidelity,
    generate,
    gsm8k,
    harness,
    longbench,
    plan,
    report_command,
    ruler,
    serve,
)
from qevict_jax.types import QEvictError
from qevict_jax.version import __version__


class OneLineErrors(TyperGroup):
    """What a user can put right is said in one line on stderr, with exit code 1; a bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (QEvictError, OSError) as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(cls=OneLineErrors, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
evaluation = typer.Typer(no_args_is_help=True)
app.add_typer(evaluation, name="eval", help="Measures what a compressed cache does to a model.")

app.command("convert")(convert.run)
app.command("calibrate")(calibrate.run)
app.command("plan")(plan.run)
app.command("generate")(generate.run)
app.command("chat")(chat.run)
app.command("serve")(serve.run)
app.command("diagnose")(diagnose.run)
app.command("report")(report_command.run)
evaluation.command("fidelity")(fidelity.run)
evaluation.command("ruler")(ruler.run)
evaluation.command("longbench")(longbench.run)
evaluation.command("gsm8k")(gsm8k.run)
evaluation.command("ablation")(ablation.run)
evaluation.command("harness", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(harness.run)


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(__version__)
        raise typer.Exit()
    return asked


@app.callback()
def qevict(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Long-context language models in a fraction of the KV-cache memory."""


def main() -> None:
    """Entry point of the installed command."""
    app(prog_name="qevict")
