# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Groups of bounded size, one report of a failed write, a checkpoint that plain Orbax reads."""

import logging
import os
import sys

import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from convert import convert
from convert.hf import HuggingFaceDirectory
from convert.write import write_weights
from qevict_jax.types import QEvictError
from tests.tiny_models import TINY, tensor_shapes, tensors, write_hf


@pytest.fixture
def source(tmp_path):
    return HuggingFaceDirectory(write_hf(tmp_path / "hf", "llama"))


def test_orbax_reads_it_under_hugging_face_names(tmp_path, source):
    write_weights(source, tmp_path / "weights", progress=False)
    loaded, expected = ocp.load(str(tmp_path / "weights")), tensors("llama")
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(loaded[name], tensor)


@pytest.mark.parametrize("limit", [1, 100_000, 2**30])
def test_groups_respect_the_limit(tmp_path, monkeypatch, source, limit):
    groups, save = [], ocp.partial.save
    monkeypatch.setattr(ocp.partial, "save", lambda path, arrays: (groups.append(arrays), save(path, arrays)))
    write_weights(source, tmp_path / "weights", group_bytes=limit, progress=False)
    assert [name for group in groups for name in group] == list(tensor_shapes(TINY["llama"]))
    for group in groups:
        assert len(group) == 1 or sum(array.nbytes for array in group.values()) <= limit
    assert len(groups) == {1: len(source.tensors), 2**30: 1}.get(limit, len(groups))


def test_a_failed_write_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full_disk(path, arrays):
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device [tensorstore_spec='{...}']\nmore")

    monkeypatch.setattr(ocp.partial, "save", full_disk)
    hook, level = sys.unraisablehook, logging.getLogger("absl").level
    with pytest.raises(QEvictError, match="failed: RESOURCE_EXHAUSTED: No space left on device$"):
        convert(write_hf(tmp_path / "hf", "llama"), tmp_path / "model", progress=False)
    assert os.listdir(tmp_path) == ["hf"]
    assert logging.getLogger("absl").level == level
    monkeypatch.setattr(sys, "unraisablehook", hook)


def test_the_bar_counts_bytes(tmp_path, source, capsys):
    write_weights(source, tmp_path / "weights")
    total = 4 * sum(np.prod(shape) for shape in tensor_shapes(TINY["llama"]).values())
    shown = capsys.readouterr().err
    assert f"{total / 1e6:.2f}M/{total / 1e6:.2f}M" in shown and "100%" in shown
