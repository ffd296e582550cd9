# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Our reader against the safetensors package, and files that are not what they should be."""

import os

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from convert import safetensors_file
from convert.safetensors_file import SafetensorsFile
from qevict_jax.types import QEvictError


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_reads_what_the_package_wrote(tmp_path, monkeypatch, stored):
    monkeypatch.setattr(safetensors_file, "PIECE_BYTES", 64)  # many pieces
    rng = np.random.default_rng(0)
    tensors = {"a": rng.normal(size=(7, 5)).astype(stored), "b": rng.normal(size=(3, 4, 5)).astype(stored)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert {name: info.shape for name, info in file.tensors.items()} == {"a": (7, 5), "b": (3, 4, 5)}
    for name, tensor in tensors.items():
        assert file.tensors[name].dtype == np.dtype(stored).name
        np.testing.assert_array_equal(file.read(name, np.dtype(stored)), tensor)
        np.testing.assert_array_equal(file.read(name, np.dtype(np.float32)), tensor.astype(np.float32))


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is not a safetensors file"),
        (b"abc", "is not a safetensors file"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "Git LFS pointer; fetch the file itself",
        ),
        ((1000).to_bytes(8, "little") + b"{}", "is truncated: its header alone needs 1008 bytes, it has 10"),
        ((2).to_bytes(8, "little") + b"[]", "header is damaged"),
        ((4).to_bytes(8, "little") + b"\xff\xff{}", "header is damaged"),
        ((9).to_bytes(8, "little") + b'{"a": {}}', "header is damaged"),
    ],
)
def test_what_is_no_safetensors_file(tmp_path, content, message):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(QEvictError, match=message):
        SafetensorsFile(tmp_path / "x.safetensors")


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": np.ones((64, 64), np.float32)}, path)
    file = SafetensorsFile(path)
    os.truncate(path, 1000)
    with pytest.raises(QEvictError, match="ended while tensor a was read"):
        file.read("a", np.dtype(np.float32))
