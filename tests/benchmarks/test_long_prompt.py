# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of resident memory on a tiny model; `.ci/run` has SmolLM2 read 8,192 tokens."""

import json
import sys

import pytest
import typer

from benchmarks import long_prompt
from convert import convert
from tests.tiny_models import write_hf


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_the_whole_benchmark(tmp_path, capsys, monkeypatch):
    checkpoint = convert(write_hf(tmp_path / "hf", "llama"), tmp_path / "model", dtype="float32", progress=False)
    long_prompt.main(str(checkpoint), total=256, new=9, budget=0.5)
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == 256
    assert 0 <= found["resident_bytes"] <= found["limit_bytes"]
    parts = found["weight_bytes"] + found["layer_bytes"] + found["kv_bytes"]
    assert parts < found["limit_bytes"] <= parts + 2**30 + found["layer_bytes"]
    monkeypatch.setattr(long_prompt, "_SPARE", -(2**40))
    with pytest.raises(typer.Exit):
        long_prompt.main(str(checkpoint), total=256, new=9, budget=0.5)
