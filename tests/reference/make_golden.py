# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Writes `tests/golden/<model>.npz`: `python -m tests.reference.make_golden`, where torch is installed."""

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from tests import golden
from tests.reference import torch_model
from tests.tiny_models import TINY, write_hf

DECODE_STEPS = 6


def golden_arrays(name: str, directory: Path) -> dict[str, np.ndarray]:
    """Everything `golden.load` documents, for row `name`."""
    model = torch_model.load(write_hf(directory, name))
    arrays = {"transformers": np.array(transformers.__version__), "torch": np.array(torch.__version__)}
    cases = golden.cases(name)
    for case in cases:
        arrays[f"{case.name}/tokens"], arrays[f"{case.name}/positions"] = case.tokens, case.positions
        arrays[f"{case.name}/logits"] = torch_model.logits(model, case.tokens, case.positions)[-golden.KEPT :]
    prompt = cases[1].tokens
    arrays["decode/prompt"] = prompt
    arrays["decode/tokens"], arrays["decode/logits"] = torch_model.greedy(model, prompt.tolist(), DECODE_STEPS)
    return arrays


def main() -> None:
    for name in TINY:
        with tempfile.TemporaryDirectory() as directory:
            arrays = golden_arrays(name, Path(directory))
        np.savez_compressed(golden.DIRECTORY / f"{name}.npz", **arrays)
        spread = {key: f"{value.std():.2f}" for key, value in arrays.items() if key.endswith("logits")}
        print(name, "standard deviation of the logits:", spread)


if __name__ == "__main__":
    main()
