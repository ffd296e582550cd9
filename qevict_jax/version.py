# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The version, alone in a file so that a build can read it without importing jax."""

__version__ = "0.1.0"
