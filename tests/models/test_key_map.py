# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The table of tensor names against an independent list, and the shapes of the tree it describes."""

import pytest

from qevict_jax.models import key_map
from qevict_jax.models.config import ModelConfig
from tests.tiny_models import TINY, hf_config, tensor_shapes


@pytest.mark.parametrize("name", TINY)
def test_expected_tensors(name):
    config = ModelConfig.from_hf(hf_config(name))
    assert key_map.expected_tensors(config) == tensor_shapes(TINY[name])


@pytest.mark.parametrize("name", TINY)
def test_each_leaf_has_its_own_path(name):
    rows = key_map.rows(ModelConfig.from_hf(hf_config(name)))
    assert len({row.path for row in rows}) == len(rows)


def test_projections_are_in_out_and_stacked():
    config = ModelConfig.from_hf(hf_config("mistral"))  # E 64, H 4, K 2, D 128, MLP 112, V 300
    shapes = {"/".join(row.path): row.leaf_shape(config) for row in key_map.rows(config)}
    assert shapes["blocks/attn/q/kernel"] == (2, 64, 512)
    assert shapes["blocks/attn/k/kernel"] == (2, 64, 256)
    assert shapes["blocks/attn/o/kernel"] == (2, 512, 64)
    assert shapes["blocks/mlp/down/kernel"] == (2, 112, 64)
    assert shapes["blocks/attn_norm/scale"] == (2, 64)
    assert shapes["embed/weight"] == (300, 64)
    assert shapes["lm_head/kernel"] == (64, 300)
