# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A row of `tests/tiny_models.py` as the library sees it: written, converted and loaded."""

from pathlib import Path

from convert import convert
from qevict_jax.models import load_model
from tests.tiny_models import write_hf


def load_converted(directory: Path, name: str):
    """The model of row `name` in float32; `directory` receives the Hugging Face files and the checkpoint."""
    source = write_hf(directory / "hf", name)
    return load_model(convert(source, directory / "checkpoint", dtype="float32", progress=False))
