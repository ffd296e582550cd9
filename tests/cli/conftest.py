# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict` in this process, and a tiny checkpoint to run it on."""

import pytest
from typer.testing import CliRunner

from convert import convert
from qevict_jax.cli.app import app
from tests.tiny_models import write_hf


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """The converted row "llama", in float32, as the path a user would type."""
    directory = tmp_path_factory.mktemp("cli")
    source = write_hf(directory / "hf", "llama")
    return str(convert(source, directory / "checkpoint", dtype="float32", progress=False))


@pytest.fixture
def qevict():
    """Runs the command: ``qevict("plan", "llama-3.1-8b")``; the result has exit_code, stdout and stderr."""
    runner = CliRunner()

    def run(*arguments, stdin=None):
        return runner.invoke(app, [str(argument) for argument in arguments], input=stdin, prog_name="qevict")

    return run


@pytest.fixture
def refused(qevict):
    """Runs the command and returns its one line of complaint."""

    def run(*arguments, stdin=None):
        result = qevict(*arguments, stdin=stdin)
        assert result.exit_code == 1, result.output
        lines = result.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
        return lines[0]

    return run
