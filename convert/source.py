# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What the converter needs to know of a model, whatever form it comes in, and how it is checked."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from qevict_jax.models.config import ModelConfig
from qevict_jax.models.key_map import expected_tensors
from qevict_jax.types import QEvictError

# Tensors are read and cast in pieces of this size, so that no second copy of a large one exists.
PIECE_BYTES = 32 * 2**20


@dataclass(frozen=True)
class TensorInfo:
    """A tensor by its header alone.

    Attributes:
        shape: as Hugging Face has it, [out, in].
        dtype: name of the stored type, e.g. "bfloat16" or "Q4_1".
        where: file that holds it, for messages.
    """

    shape: tuple[int, ...]
    dtype: str
    where: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@runtime_checkable  # lets the type checks of the tests see it
class Source(Protocol):
    """A model to be converted; opening it reads headers only.

    Attributes:
        config: its architecture; dtype is that of the weights.
        tensors: every tensor under its Hugging Face name.
    """

    config: ModelConfig
    tensors: dict[str, TensorInfo]

    def read(self, name: str, dtype: np.dtype) -> np.ndarray:
        """The tensor `name` in Hugging Face orientation and row order, cast to `dtype`."""
        ...

    def write_companions(self, directory: Path) -> None:
        """Writes tokenizer, chat template and generation config into `directory`."""
        ...


def check_tensors(source: Source, where: Path) -> None:
    """Compares the tensors of `source` with those its configuration calls for.

    Raises:
        QEvictError: names the first tensor that is missing, unexpected or of the wrong shape.
    """
    expected = expected_tensors(source.config)
    missing = [name for name in expected if name not in source.tensors]
    if missing == ["lm_head.weight"]:
        raise QEvictError(
            f"{where}: tensor lm_head.weight is missing and config.json does not tie it to the embedding; "
            "set tie_word_embeddings to true there if the model does"
        )
    if missing:
        raise QEvictError(f"{where}: tensor {missing[0]} is missing{_and_more(missing)}")
    unexpected = [name for name in source.tensors if name not in expected]
    if unexpected:
        name = unexpected[0]
        raise QEvictError(
            f"{source.tensors[name].where}: unexpected tensor {name}{_and_more(unexpected)}; "
            f"a {source.config.architecture} model of this configuration has none"
        )
    for name, shape in expected.items():
        found = source.tensors[name]
        if found.shape != shape:
            raise QEvictError(
                f"{found.where}: tensor {name} has shape {found.shape}, the configuration calls for {shape}"
            )


def dominant_dtype(tensors: Mapping[str, TensorInfo]) -> str:
    """The dtype in which most elements are stored."""
    sizes: dict[str, int] = {}
    for info in tensors.values():
        sizes[info.dtype] = sizes.get(info.dtype, 0) + info.size
    return max(sizes, key=lambda dtype: sizes[dtype])


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
