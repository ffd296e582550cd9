# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of generation are one step and one event, arranged differently."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.decoding import Compiled, Decoder
from qevict_jax.policies import make_policy
from qevict_jax.sampling import Filters, Numbers, Sampling
from tests.converted import load_converted

LENGTHS, STEPS = (40, 3, 0), 21


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_converted(tmp_path_factory.mktemp("decoding"), "llama")


@pytest.fixture(scope="module", params=["qevict", "full"])
def compiled(request, model):
    cache = CacheConfig(budget=0.8, kv_dtype="float32", recent=8, quant_fraction=0.5)
    cache = cache if request.param == "qevict" else CacheConfig.full("float32")
    policy = make_policy(model.config.kv_shape(), cache, 64)
    return Compiled(Decoder(model.program, policy, Filters.of(Sampling()), (), STEPS, log_probs=True))


@pytest.fixture
def begin(compiled, model):
    """A fresh state after three prompts, the last one an empty row."""

    def call():
        prompts = jnp.asarray(np.random.default_rng(1).integers(0, 256, (3, 43)), jnp.int32)
        length, limit = jnp.asarray(LENGTHS, jnp.int32), jnp.full(3, STEPS, jnp.int32)
        logits, cache = compiled("read", model.params, prompts, length)
        return compiled("begin", model.params, cache, logits, length > 0, limit, Numbers.of(Sampling()))

    return call


def test_run_blocks_and_single_steps_agree(compiled, model, begin):
    numbers, width = Numbers.of(Sampling()), compiled.decoder.policy.event_steps
    whole = compiled("run", model.params, begin(), numbers)
    blocks = begin()
    while bool(blocks.active.any()):
        blocks = compiled("block", model.params, blocks, numbers)
    single, fed = begin(), 0
    while bool(single.active.any()):
        single, fed = compiled("token", model.params, single, numbers), fed + 1
        if fed % width == 0:
            single = compiled("event", model.params, single)
    assert whole.tokens.tolist() == blocks.tokens.tolist() == single.tokens.tolist()
    np.testing.assert_allclose(whole.log_probs, single.log_probs, rtol=0, atol=1e-5)
    assert whole.cache.length.tolist() == single.cache.length.tolist()


def test_rows_end_at_their_limit_and_an_empty_row_never_starts(compiled, model, begin):
    state = begin().replace(limit=jnp.asarray([STEPS, 2, STEPS], jnp.int32))
    state = compiled("run", model.params, state, Numbers.of(Sampling()))
    assert state.count.tolist() == [STEPS, 2, 0]
    assert state.cache.length.tolist() == [LENGTHS[0] + STEPS - 1, LENGTHS[1] + 1, 0]


def test_compile_time_is_counted_once(compiled, begin):
    begin()
    before = compiled.seconds
    assert before > 0
    begin()
    assert compiled.seconds - before < 0.05


def test_the_cache_is_donated(compiled, model, begin):
    state = begin()
    compiled("event", model.params, state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.cache) if leaf.size > 3)
