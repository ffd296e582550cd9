# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""transformers as a side of the efficiency benchmark: the model it makes is ours, and its cache holds every token."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

from benchmarks.efficiency_sides import Peer, transformers_config
from benchmarks.peers.transformers_cache import Worker
from tests.random_model import CONFIGS, random_model

pytestmark = pytest.mark.reference


@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_shapes(name):
    model = Worker(transformers_config(CONFIGS[name]), "float32").model
    ours = sum(leaf.size for leaf in random_model(name).params.flat_state().leaves)
    assert sum(parameter.numel() for parameter in model.parameters()) == ours


def test_a_batch_of_copies():
    worker = Worker(transformers_config(CONFIGS["plain"]), "float32")
    assert worker.read([[1, 2, 3], [4, 5, 6]]) > 0
    cache, first = worker.rows
    assert cache.get_seq_length() == 3 and first.shape == (2, 1)
    assert min(worker.decode(batch=4, steps=5, keep=True)) > 0
    assert cache.get_seq_length() == 3  # what is kept does not grow
    worker.decode(batch=4, steps=5, keep=False)
    assert cache.get_seq_length() == 8 and len(cache.layers[0].keys) == 4
    assert worker.rows is None


def test_in_a_process():
    peer = Peer(CONFIGS["plain"], "float32", outputs=4)
    try:
        assert "transformers" in peer.version
        assert peer.read(np.ones((1, 6), np.int32)) > 0
        assert min(peer.decode(2, keep=False)) > 0
    finally:
        peer.close()
