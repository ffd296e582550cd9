# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Reads one GGUF file: metadata, tensor headers, and dequantized tensors in small pieces.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package parses headers and
dequantizes blocks; the data are read with plain reads, since pages of its memory map would count as ours.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from convert.source import PIECE_BYTES, TensorInfo
from qevict_jax.types import QEvictError

_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class GGUFFile:
    """Headers of one file.

    Attributes:
        metadata: key to number, string, bool or list.
        tensors: headers under GGUF names; shapes are [out, in] as in Hugging Face.

    Raises:
        QEvictError: the file is no GGUF file, truncated, or part of a split one.
    """

    def __init__(self, path: Path):
        self._path = path
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise QEvictError(f"{path} is neither a model directory nor a GGUF file (it begins with {magic!r})")
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, KeyError):
            # The reader walks off the end of a short file in many places, each with its own message.
            size = path.stat().st_size
            raise QEvictError(
                f"{path} is truncated or damaged: its {size} bytes do not hold what the header promises"
            ) from None
        self.metadata: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        parts = self.metadata.get("split.count", 1)
        if parts > 1:
            raise QEvictError(
                f"{path} is one of {parts} parts; merge them first with `llama-gguf-split --merge FIRST OUT`"
            )
        self._types = {tensor.name: tensor.tensor_type for tensor in reader.tensors}
        self._offsets = {tensor.name: int(tensor.data_offset) for tensor in reader.tensors}
        self.tensors: dict[str, TensorInfo] = {
            tensor.name: TensorInfo(
                tuple(int(size) for size in reversed(tensor.shape)),
                _FLOATS.get(tensor.tensor_type.name, tensor.tensor_type.name),
                str(path),
            )
            for tensor in reader.tensors
        }

    def read(self, name: str, dtype: np.dtype) -> np.ndarray:
        """The tensor `name` dequantized in float32 and cast to `dtype`."""
        out = np.empty(self.tensors[name].shape, dtype)
        rows = out.reshape(-1, out.shape[-1])
        filled = 0
        for piece in self._pieces(name):
            rows[filled : filled + len(piece)] = piece
            filled += len(piece)
        return out

    def _pieces(self, name: str) -> Iterator[np.ndarray]:
        """Rows of the tensor in float32, at most `PIECE_BYTES` of them at once."""
        kind, shape = self._types[name], self.tensors[name].shape
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        row_bytes = shape[-1] // block * block_bytes
        left = int(np.prod(shape[:-1]))
        step = max(1, PIECE_BYTES // (4 * shape[-1]))
        with self._path.open("rb") as file:
            file.seek(self._offsets[name])
            while left:
                rows = min(left, step)
                raw = np.frombuffer(file.read(rows * row_bytes), np.uint8)
                if raw.size < rows * row_bytes:
                    raise QEvictError(f"{self._path} ended while tensor {name} was read: did it change?")
                yield self._dequantize(name, raw.reshape(rows, row_bytes))
                left -= rows

    def _dequantize(self, name: str, rows: np.ndarray) -> np.ndarray:
        try:
            return dequantize(rows, self._types[name])
        except NotImplementedError:
            raise QEvictError(
                f"{self._path}: tensor {name} is stored as {self._types[name].name}, which is not supported"
            ) from None
