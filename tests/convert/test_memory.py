# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The promises about host memory, measured as resident memory of a process of its own."""

import sys

import pytest

from convert import convert
from tests.convert.synthetic import peak_growth, write_large
from tests.tiny_models import write_hf

MIB = 2**20
# 24 MiB for the largest tensor; 96 MiB for a layer, of which 72 for the MLP.
_SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 4096,
}
_LARGEST = 24 * MIB
_NOISE = 32 * MIB  # thread stacks, JSON, Orbax metadata

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc"),
]


def test_conversion_holds_one_group(tmp_path):
    warm, source = write_hf(tmp_path / "warm", "llama"), tmp_path / "hf"
    total = write_large(source, layers=6, shard_bytes=150 * MIB, **_SIZES)
    group, piece = 32 * MIB, 32 * MIB
    growth = peak_growth(
        "from convert import convert\nimport sys\nconvert(sys.argv[1], sys.argv[2], progress=False)",
        "convert(sys.argv[3], sys.argv[4], progress=False, group_bytes=int(sys.argv[5]))",
        *(warm, tmp_path / "a", source, tmp_path / "b", group),
    )
    assert growth < group + piece + _NOISE
    assert total > 4 * growth  # the bound means something


def test_loading_holds_the_weights_and_one_stacked_leaf(tmp_path):
    warm = convert(write_hf(tmp_path / "warm", "llama"), tmp_path / "a", progress=False)
    total = write_large(tmp_path / "hf", layers=6, shard_bytes=150 * MIB, **_SIZES)
    large = convert(tmp_path / "hf", tmp_path / "b", progress=False)
    growth = peak_growth(
        "import sys\nfrom qevict_jax.models.checkpoint import load_params, read_config\n"
        "load = lambda path: load_params(path, read_config(path))\nload(sys.argv[1])",
        "params = load(sys.argv[2])",
        *(warm, large),
    )
    # On a CPU the stacked leaf becomes the device array without a copy; two source tensors are alive at once.
    assert total <= growth < total + 2 * _LARGEST + _NOISE
