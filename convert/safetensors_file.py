# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Reads one safetensors file in small pieces.

The format is eight bytes of header length, a JSON header and raw little-endian data
(https://github.com/huggingface/safetensors#format). We read it ourselves because a memory map of a
5 GB shard counts as 5 GB of resident memory, and this converter promises a bound.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from convert.source import PIECE_BYTES, TensorInfo
from qevict_jax.types import QEvictError

_DTYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F64": np.dtype(np.float64),
}
_MAX_HEADER_BYTES = 100 * 2**20  # the limit of the format


class SafetensorsFile:
    """Header of one file; tensors are read on demand.

    Attributes:
        tensors: what the file holds.

    Raises:
        QEvictError: the file is truncated, is no safetensors file, or holds a dtype that is not a float.
    """

    def __init__(self, path: Path):
        self._path = path
        self._offsets: dict[str, int] = {}
        self._dtypes: dict[str, np.dtype] = {}
        self.tensors: dict[str, TensorInfo] = {}
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > _MAX_HEADER_BYTES:
                raise QEvictError(f"{path} is not a safetensors file{_pointer_hint(path)}")
            if 8 + length > size:
                raise QEvictError(f"{path} is truncated: its header alone needs {8 + length} bytes, it has {size}")
            text = file.read(length)
        try:
            header = json.loads(text)
            header.pop("__metadata__", None)
            end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
            for name, entry in header.items():
                self._add(name, entry, 8 + length)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, QEvictError):
                raise
            raise QEvictError(f"{path} is not a safetensors file: its header is damaged") from None
        if 8 + length + end > size:
            raise QEvictError(f"{path} is truncated: it should have {8 + length + end} bytes, it has {size}")

    def _add(self, name: str, entry: dict, data: int) -> None:
        if entry["dtype"] not in _DTYPES:
            raise QEvictError(
                f"{self._path}: tensor {name} is stored as {entry['dtype']}; quantized and integer weights "
                f"are not supported, only {', '.join(_DTYPES)}"
            )
        dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
        start, end = entry["data_offsets"]
        if end - start != math.prod(shape) * dtype.itemsize:
            raise QEvictError(f"{self._path}: the header gives tensor {name} the wrong number of bytes")
        self._offsets[name], self._dtypes[name] = data + start, dtype
        self.tensors[name] = TensorInfo(shape, dtype.name, str(self._path))

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """The tensor `name` as flat arrays of `PIECE_BYTES` in its stored dtype."""
        stored = self._dtypes[name]
        left = self.tensors[name].size * stored.itemsize
        with self._path.open("rb") as file:
            file.seek(self._offsets[name])
            while left:
                wanted = min(left, PIECE_BYTES)
                raw = file.read(wanted)
                if len(raw) < wanted:
                    raise QEvictError(f"{self._path} ended while tensor {name} was read: did it change?")
                left -= wanted
                yield np.frombuffer(raw, stored)

    def read(self, name: str, dtype: np.dtype) -> np.ndarray:
        """The tensor `name` cast to `dtype`; besides the result only a small piece is in memory."""
        out = np.empty(self.tensors[name].shape, dtype)
        flat, filled = out.reshape(-1), 0
        for piece in self.pieces(name):
            flat[filled : filled + piece.size] = piece
            filled += piece.size
        return out


def _pointer_hint(path: Path) -> str:
    with path.open("rb") as file:
        is_pointer = file.read(40).startswith(b"version https://git-lfs")
    return " but a Git LFS pointer; fetch the file itself with `git lfs pull`" if is_pointer else ""
