# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The script for people with a GPU runs, here interpreted and tiny."""

import json

import numpy as np

from benchmarks.gpu_decode import measure
from pallas_kernels.tiered_decode_attention.arg_specs import SPECS


def test_measure():
    spec = SPECS["only_local"]
    found = json.loads(json.dumps(measure({"tiny": spec}, ["only_local"], 64, 1 << 16, interpret=True)))
    assert found["errors"]["only_local"] < 1e-5
    kernel = found["shapes"]["tiny"]["kernel"]
    # a row holds keys and values of float32
    assert kernel["bytes"] == spec.B * spec.local_rows * spec.K * 2 * spec.D * 4
    np.testing.assert_allclose(kernel["bytes_per_second"] * kernel["ms"] / 1e3, kernel["bytes"])
    assert found["shapes"]["tiny"]["full_bfloat16"]["bytes"] == spec.B * 64 * spec.K * 2 * spec.D * 2
