# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What token-level eviction keeps of a prompt: the published formula in float64, and kvpress where it has the same."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from qevict_jax.config import CacheConfig
from qevict_jax.models import steps
from qevict_jax.policies import make_policy, plan_cache, policy_options
from qevict_jax.policies.base import Tier
from tests import eviction_formulas as formulas
from tests.converted import load_converted
from tests.float64_model import Float64Model
from tests.golden import kept_sets
from tests.policy_table import CASES, ROWS
from tests.quick_compile import QUICK
from tests.recording import driver, recording


def layers_of(name: str, row: int) -> list[formulas.Layer]:
    """What the layers of a prompt give a method to look at."""
    made, moment = driver(name), recording(name)[0]
    model = Float64Model(made.model)
    _, traces = model.run(moment.tokens[row, : moment.count[row]], dtype=CASES[name].config.kv_dtype)
    config = made.model.config
    kernels = np.float64(nnx.to_pure_dict(made.model.params)["blocks"]["attn"]["o"]["kernel"])
    kernels = kernels.reshape(config.layers, config.kv_heads, -1, config.head_dim, config.hidden)
    by_group = [t.weights.reshape(config.kv_heads, -1, *t.weights.shape[1:]) for t in traces]
    return [formulas.Layer(*x) for x in zip(by_group, [t.values for t in traces], kernels, strict=True)]


def expected(name: str, row: int) -> list[np.ndarray]:
    """Per layer the set ``[K, n]``, newest tokens included."""
    config, layout = CASES[name].config, driver(name).policy.plan.layout
    layers, options = layers_of(name, row), policy_options(config)
    kv_heads, n = layout.shape.kv_heads, layers[0].weights.shape[-1]
    rows = layout.rows // kv_heads
    if config.policy == "layer_defensivekv":
        sets = formulas.layer_defensivekv(layers, rows, layout.most, options)
    else:
        method = getattr(formulas, config.policy)
        sets = [method(layer, rows, layout.recent, options) for layer in layers]
    return [np.pad(made, ((0, 0), (0, n - made.shape[1])), constant_values=True) for made in sets]


def kept(policy, cache) -> np.ndarray:
    """Bool ``[L, B, K, S]``."""
    placement = np.asarray(policy.placement(jax.tree.map(jnp.asarray, cache)))
    return (placement == Tier.FULL) | (placement == Tier.RECENT) | (placement == Tier.SINK)


# a window wider than the ring ("snapkv_variant") pins tokens that have no score; the next test has that
@pytest.mark.parametrize("name", [name for name in ROWS if name != "snapkv_variant"])
@pytest.mark.parametrize("row", [0, 1])
def test_the_set_is_that_of_the_formula(name, row):
    ours = kept(driver(name).policy, recording(name)[0].cache)[:, row]
    n = recording(name)[0].count[row]
    sets = expected(name, row)
    for layer, wanted in enumerate(sets):
        np.testing.assert_array_equal(ours[layer, :, :n], wanted, err_msg=f"layer {layer}")
    assert not all(wanted.all() for wanted in sets), "nothing is evicted"
    assert not ours[:, :, n:].any()


def test_a_window_wider_than_the_ring_is_kept_at_first():
    """Its tokens outside the ring come before the best scores."""
    name = "snapkv_variant"
    layout, options = driver(name).policy.plan.layout, policy_options(CASES[name].config)
    assert options.window > layout.recent
    rows = layout.rows // layout.shape.kv_heads - (options.window - layout.recent)
    ours, n = kept(driver(name).policy, recording(name)[0].cache)[:, 0], recording(name)[0].count[0]
    for layer, made in enumerate(layers_of(name, 0)):
        wanted = np.pad(formulas.snapkv(made, rows, 0, options), ((0, 0), (0, options.window)), constant_values=True)
        np.testing.assert_array_equal(ours[layer, :, :n], wanted)


def test_head_and_layer_budgets_differ():
    """Or nothing above told them from uniform ones."""
    per_head = {name: [made.sum(axis=1) for made in expected(name, 0)] for name in ROWS}
    for name in ("adakv", "criticalkv", "defensivekv"):
        assert any(len(set(counts.tolist())) > 1 for counts in per_head[name]), name
    assert len({int(counts.sum()) for counts in per_head["layer_defensivekv"]}) > 1
    one, other = (expected(name, 0) for name in ("adakv", "criticalkv"))
    assert any((a != b).any() for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module", params=kept_sets.MODELS)
def tiny(request, tmp_path_factory):
    return request.param, load_converted(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("case", kept_sets.CASES)
def test_the_set_is_that_of_kvpress(tiny, case):
    """With the bytes that hold as many tokens, and kvpress's shares of them."""
    name, model = tiny
    policy_name, options = kept_sets.CASES[case]
    golden, total = kept_sets.load(), kept_sets.SIZE + 8
    wanted = golden[f"{name}/{case}"]
    config = CacheConfig(policy=policy_name, policy_options=options, kv_dtype="float32", budget=2.0)
    shape = model.config.kv_shape("float32")

    def tokens_kept(budget_bytes: int) -> int:
        changed = CacheConfig(policy=policy_name, policy_options=options, kv_dtype="float32", budget_bytes=budget_bytes)
        capacities = dict(plan_cache(shape, changed, total).capacities)
        per_head = capacities.get("tokens per head", 0) + capacities["recent tokens"]
        return per_head + capacities.get("sink tokens", 0)

    low, high = shape.bytes_per_token * 16, plan_cache(shape, config, total).kv_bytes
    while low < high:  # the least bytes with which that many are kept
        middle = (low + high) // 2
        low, high = (middle + 1, high) if tokens_kept(middle) < kept_sets.KEPT else (low, middle)
    config = CacheConfig(policy=policy_name, policy_options=options, kv_dtype="float32", budget_bytes=low)
    policy = make_policy(shape, config, total)
    tokens = golden[f"{name}/tokens"]
    np.testing.assert_array_equal(tokens, kept_sets.tokens(name))

    def prefill(params, tokens, length):
        return steps.prefill(model.program, params, policy, tokens, length)[1]

    length = np.array([kept_sets.SIZE], np.int32)
    cache = jax.jit(prefill, compiler_options=QUICK)(model.params, tokens[None], length)
    ours = kept(policy, cache)[:, 0, :, : kept_sets.SIZE]
    np.testing.assert_array_equal(np.broadcast_to(ours, wanted.shape), wanted)


def test_the_golden_file_is_documented():
    assert Path(kept_sets.FILE).is_file() and {"kvpress", "transformers"} <= kept_sets.load().keys()
