# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The command as installed: help, version, and errors of every kind."""

import subprocess
import sys

import pytest

from qevict_jax.version import __version__

EVALUATIONS = ("fidelity", "ruler", "longbench", "gsm8k", "ablation", "harness")
COMMANDS = [["convert"], ["plan"], ["generate"], ["chat"], ["report"], *(["eval", name] for name in EVALUATIONS)]


def test_version(qevict):
    assert qevict("--version").stdout.strip() == __version__


@pytest.mark.parametrize("command", COMMANDS, ids="-".join)
def test_every_command_has_help(qevict, command):
    result = qevict(*command, "--help")
    assert result.exit_code == 0 and "Usage: qevict " + " ".join(command) in result.stdout


def test_an_unknown_option_is_a_usage_error(qevict):
    result = qevict("plan", "llama-3.1-8b", "--bit", "3")
    assert result.exit_code == 2 and "No such option" in result.stderr


def test_help_of_the_installed_command_loads_no_model_code():
    code = (
        "import sys; from qevict_jax.cli.app import app\n"
        "slow = {'convert', 'matplotlib', 'transformers', 'torch', 'lm_eval', 'wonderwords'}\n"
        "assert not slow & set(sys.modules), 'slow start'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
