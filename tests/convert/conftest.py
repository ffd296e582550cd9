# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2, converted once."""

import pytest

from convert import convert
from tests.smollm2 import INSTALL, packaged_file


@pytest.fixture(scope="session")
def smollm2_file():
    """Path of the packaged GGUF file."""
    file = packaged_file()
    if file is None:
        pytest.skip(f"needs SmolLM2: {INSTALL}")
    return file


@pytest.fixture(scope="session")
def smollm2(smollm2_file, tmp_path_factory):
    """A bfloat16 checkpoint of SmolLM2."""
    return convert(smollm2_file, tmp_path_factory.mktemp("smollm2") / "model", progress=False)
