# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face directories and GGUF files to checkpoints of qevict_jax; `python -m convert SRC DST`."""

from convert.conversion import convert as convert
