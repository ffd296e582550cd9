# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The command `qevict`: one file per subcommand. Heavy imports wait until a command runs."""

from qevict_jax.cli.app import main as main
