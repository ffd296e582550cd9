# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint comes onto a mesh in parts: what one device loads, cut up, and never whole on the way."""

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from qevict_jax import load
from qevict_jax.mesh import MeshShape
from tests.converted import load_converted

# 4 query heads share 2 KV heads, with biases: every KV head is on two devices
NAME, MESH = "qwen2", "data=2,model=4"


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return load_converted(tmp_path_factory.mktemp("loading"), NAME)


@pytest.fixture(scope="module")
def asked():
    """What was asked of Orbax."""
    return []


@pytest.fixture(scope="module")
def many(one, asked):
    def recorded(path, abstract):
        asked.extend(abstract.items())
        return original(path, abstract)

    original = ocp.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ocp, "load", recorded)
        return load(one.config.checkpoint, mesh=MESH)


def test_a_loaded_model_is_the_model_of_one_device_in_parts(one, many):
    expected = one.on(MeshShape.parse(MESH))
    assert many.program == expected.program
    for a, b in zip(jax.tree.leaves(expected.params), jax.tree.leaves(many.params), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
        np.testing.assert_array_equal(a, b)


def test_every_tensor_is_read_in_parts(asked, many):
    assert asked and many.mesh is not None
    for name, wanted in asked:
        parts = wanted.size // np.prod(wanted.sharding.shard_shape(wanted.shape))
        assert parts == (1 if "norm" in name else 2 if "k_proj" in name or "v_proj" in name else 4), name


def test_a_mesh_has_the_logits_of_one_device(one, many):
    tokens = np.random.default_rng(0).integers(0, one.config.vocab, (2, 12))
    expected = one.logits(tokens)
    # sums in another order; the constant part of this model's keys makes for logits of attention in the hundreds
    np.testing.assert_allclose(many.logits(tokens), expected, atol=1e-3 * np.abs(expected).max())
