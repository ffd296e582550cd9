# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The decode attention kernel, really compiled for every kind of TPU at the shapes of real models."""

import pytest

from pallas_kernels.tiered_decode_attention.arg_specs import MODEL_SPECS
from tests.tpu.in_process import NEEDS_LIBTPU, run_module

pytestmark = NEEDS_LIBTPU

TEMP_BYTES = 1 << 20  # queries in their rows and masses, for one sequence


@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2", "tpu7x:2x2x1"])
def test_every_model_compiles_in_place(topology: str):
    """One process a topology, which saves starting libtpu for every shape."""
    found = {line["name"]: line for line in run_module("tests.tpu.compile_kernels", topology, timeout=1500)}
    assert found.keys() == MODEL_SPECS.keys()
    for name, line in found.items():
        assert line["tier_copies"] == {}, line
        temporary = line["temp_bytes"] - line["unaligned_bytes"]
        assert temporary <= TEMP_BYTES * MODEL_SPECS[name].B, line
        assert temporary < line["tier_bytes"] / MODEL_SPECS[name].L / 4, line
