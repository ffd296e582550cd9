# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict convert`; the conversion itself is tested in tests/convert."""

import pytest

from qevict_jax.models.checkpoint import read_config
from tests.tiny_models import write_hf


def test_converts_and_prints_the_destination(qevict, tmp_path):
    source, destination = write_hf(tmp_path / "hf", "llama"), tmp_path / "checkpoint"
    result = qevict("convert", source, destination, "--dtype", "bfloat16")
    assert result.exit_code == 0 and result.stdout == f"{destination}\n"
    assert read_config(destination).dtype == "bfloat16"
    assert qevict("convert", source, destination, "--overwrite").exit_code == 0
    assert read_config(destination).dtype == "float32"


@pytest.mark.parametrize("content", [None, b"", b"GGUF", b"\x7fELF\x02"])
def test_what_is_no_model_is_refused_in_one_line(refused, tmp_path, content):
    source = tmp_path / "model.gguf"
    if content is not None:
        source.write_bytes(content)
    assert str(source) in refused("convert", source, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()
