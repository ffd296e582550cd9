# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""On a mesh, too, rows join and leave: each gives what it gives alone there, whichever part of the batch it is in."""

import numpy as np
import pytest

from qevict_jax import CacheConfig, QEvictError, generate
from qevict_jax.engine import Engine
from qevict_jax.mesh import MeshShape
from qevict_jax.models.partition import local_config
from qevict_jax.policies import POLICIES
from tests.eight_devices.models import CONTEXT, NEW, model_on, requests
from tests.random_model import CONFIGS

MESH, SLOTS = "data=2,model=2", 4
LOSSY = CacheConfig(budget=0.6, kv_dtype="float32", recent=8, quant_fraction=0.4)


def test_rows_join_and_leave_on_a_mesh():
    engine = Engine(model_on(MESH), LOSSY, slots=SLOTS, max_context=CONTEXT, max_new_tokens=NEW, log_probs=True)
    rows = [engine.prefill([request], size=64) for request in requests()]
    alone = []
    for number, row in enumerate(rows):
        slot = number % SLOTS
        engine.insert(row, [slot])
        engine.decode_all()
        alone.append(engine.row(slot))
        engine.release(slot)

    random = np.random.default_rng(0)
    waiting, taken, ended = list(range(len(rows))), {}, 0
    while waiting or taken:
        while waiting and engine.free and random.random() < 0.7:
            slot = int(random.choice(engine.free))
            taken[slot] = waiting.pop()
            engine.insert(rows[taken[slot]], [slot])
        if not taken:
            continue
        engine.decode_block()
        for slot, number in list(taken.items()):
            found, leaves = engine.row(slot), random.random() < 0.1
            assert found.tokens == alone[number].tokens[: len(found.tokens)]
            assert found.log_probs == alone[number].log_probs[: len(found.tokens)]
            if leaves or not found.active:
                assert leaves or found.tokens == alone[number].tokens
                ended += not found.active
                engine.release(slot)
                del taken[slot]
    assert ended >= len(rows) // 2


def test_what_a_mesh_cannot_do():
    devices = model_on("data=2,model=4")
    with pytest.raises(QEvictError, match="1 sequences at once do not go evenly onto the mesh; 2 do"):
        generate(devices, [[1]], cache=LOSSY, max_new_tokens=4)
    with pytest.raises(QEvictError, match="on each of the 4 devices"):
        Engine(devices, CacheConfig(budget=0.01, kv_dtype="float32"), slots=2, max_context=CONTEXT)
    for name, row in POLICIES.items():
        if isinstance(row.spread, str):
            with pytest.raises(QEvictError, match="cannot run on a mesh with model=4: .*; data=N can"):
                Engine(devices, CacheConfig(policy=name, kv_dtype="float32"), slots=2, max_context=CONTEXT)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("data=3,model=4", "needs 12 devices and there are 8"),
        ("model=3", "4 KV heads do not go evenly onto model=3"),
        ("model=6", "4 KV heads do not go evenly"),
    ],
)
def test_meshes_that_do_not_fit(mesh, message):
    with pytest.raises(QEvictError, match=message):
        model_on(mesh)


def test_query_heads_that_do_not_go_evenly():
    config = CONFIGS["bias"]  # 3 query heads, 1 KV head
    with pytest.raises(QEvictError, match="3 query heads do not go evenly onto model=2"):
        local_config(config, MeshShape(model=2).split_heads(config.kv_heads))
