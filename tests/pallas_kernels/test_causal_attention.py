# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Causal attention of a prompt, XLA and splash attention interpreted, against plain softmax in float64."""

import json
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

from pallas_kernels.causal_attention import base
from pallas_kernels.causal_attention.api import causal_attention
from tests.float64_model import softmax_attention


def qkv(batch, size, heads, kv_heads, head_dim, seed=0):
    random = np.random.default_rng(seed)
    return [np.float32(random.normal(size=(batch, size, h, head_dim))) for h in (heads, kv_heads, kv_heads)]


def with_padding(q, k, v, start):
    """Copies with NaN in queries and keys and huge values from a position on."""
    behind = (np.arange(q.shape[1]) >= start)[:, None, None]
    return [np.where(behind, np.float32(filler), x) for x, filler in ((q, np.nan), (k, np.nan), (v, 9e9))]


def assert_attends(q, k, v, out, lse):
    """Output and log-sum-exp of every row, against float64."""
    size, heads, head_dim = q.shape[1:]
    groups = heads // k.shape[2]
    for row in range(len(q)):
        wanted, weights = softmax_attention(q[row], k[row], v[row], np.tril(np.ones((size, size), bool)))
        np.testing.assert_allclose(out[row], wanted, rtol=0, atol=1e-5)
        logits = np.einsum("thd,thd->th", np.float64(q[row]), np.repeat(np.float64(k[row]), groups, axis=1))
        own = weights[:, np.arange(size), np.arange(size)].T
        np.testing.assert_allclose(lse[row], logits / head_dim**0.5 - np.log(own), rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 127, 128, 130])
def test_causal_attention_of_sizes_around_blocks(size, monkeypatch):
    """Blocks of at most 16 queries, spans of several blocks: no size falls between them."""
    monkeypatch.setattr(base, "_BLOCK_BYTES", 4 * 2 * 4 * size * 16)
    q, k, v = qkv(2, size, 4, 2, 8)
    out, lse = jax.jit(causal_attention)(q, k, v)
    assert out.shape == q.shape and lse.shape == q.shape[:3]
    assert_attends(q, k, v, out, lse)


@pytest.mark.parametrize("groups", [1, 3, 4, 7, 8])
def test_query_heads_share_kv_heads_in_order(groups):
    q, k, v = qkv(1, 12, 2 * groups, 2, 16)
    out, _ = jax.jit(causal_attention)(q, k, v)
    wanted, _ = softmax_attention(q[0], k[0], v[0], np.tril(np.ones((12, 12), bool)))
    np.testing.assert_allclose(out[0], wanted, rtol=0, atol=1e-5)


def test_padding_behind_is_never_seen():
    q, k, v = qkv(1, 40, 4, 2, 8)
    whole, _ = jax.jit(causal_attention)(q, k, v)
    out, _ = jax.jit(causal_attention)(*with_padding(q, k, v, 23))
    np.testing.assert_allclose(out[:, :23], whole[:, :23], rtol=0, atol=1e-5)


def test_huge_logits_neither_overflow_nor_blur():
    """Qwen2.5 keys of magnitude 900: float32 softmax with the maximum taken out."""
    q, k, v = qkv(1, 20, 2, 1, 16)
    k += 900.0
    out, lse = jax.jit(causal_attention)(q, k, v)
    assert np.isfinite(out).all() and np.isfinite(lse).all()
    wanted, _ = softmax_attention(q[0], k[0], v[0], np.tril(np.ones((20, 20), bool)))
    np.testing.assert_allclose(out[0], wanted, rtol=0, atol=5e-3)


@pytest.mark.parametrize(
    ("size", "kv_heads", "groups", "head_dim"), [(130, 1, 3, 80), (300, 2, 7, 16), (2050, 1, 1, 8)]
)
def test_splash_attention(size, kv_heads, groups, head_dim):
    """One block, several, a partial last one, and long blocks; heads in order."""
    q, k, v = qkv(2 if size < 1000 else 1, size, kv_heads * groups, kv_heads, head_dim)
    out, lse = jax.jit(partial(causal_attention, implementation="interpret"))(q, k, v)
    assert out.dtype == lse.dtype == jnp.float32
    assert_attends(q, k, v, out, lse)


def test_splash_attention_in_bfloat16():
    """Queries are rounded once more after scaling: two roundings of the weights and one of the output."""
    q, k, v = (jnp.asarray(x, jnp.bfloat16) for x in qkv(1, 200, 4, 2, 32))
    out, lse = jax.jit(partial(causal_attention, implementation="interpret"))(q, k, v)
    wanted, wanted_lse = jax.jit(base.causal_attention)(*(x.astype(jnp.float32) for x in (q, k, v)))
    assert out.dtype == jnp.bfloat16 and lse.dtype == jnp.float32
    np.testing.assert_allclose(out.astype(jnp.float32), wanted, rtol=0, atol=2**-6)
    np.testing.assert_allclose(lse, wanted_lse, rtol=0, atol=2**-6)


def test_splash_attention_sees_no_padding_behind():
    q, k, v = qkv(1, 150, 2, 1, 16)
    function = jax.jit(partial(causal_attention, implementation="interpret"))
    whole, whole_lse = function(q, k, v)
    out, lse = function(*with_padding(q, k, v, 100))
    np.testing.assert_array_equal(out[:, :100], whole[:, :100])
    np.testing.assert_array_equal(lse[:, :100], whole_lse[:, :100])


def exported(platform, dtype, head_dim, implementation="auto"):
    """StableHLO of a program exported on this CPU for another platform."""
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in ("tpu_custom_call", "__cudnn$fmhaSoftmax")]
    arrays = [jax.ShapeDtypeStruct((1, 256, heads, head_dim), dtype) for heads in (4, 2, 2)]
    chip = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    mesh = AbstractMesh((1,), ("x",), (AxisType.Auto,), abstract_device=chip)
    function = jax.jit(partial(causal_attention, implementation=implementation))
    with use_abstract_mesh(mesh if platform == "tpu" else AbstractMesh((), (), ())):
        return export.export(function, platforms=[platform], disabled_checks=checks)(*arrays).mlir_module()


@pytest.mark.parametrize(
    ("platform", "dtype", "head_dim", "call"),
    [
        ("tpu", "bfloat16", 80, "tpu_custom_call"),
        ("tpu", "float32", 64, "tpu_custom_call"),
        ("tpu", "float16", 64, None),
        ("cuda", "bfloat16", 128, "__cudnn$fmhaSoftmax"),
        ("cuda", "float16", 80, "__cudnn$fmhaSoftmax"),
        ("cuda", "float32", 64, None),
        ("cuda", "bfloat16", 256, None),
        ("cuda", "bfloat16", 20, None),
        ("cpu", "bfloat16", 64, None),
    ],
)
def test_auto_takes_the_library_of_the_platform_where_it_takes_the_shape(platform, dtype, head_dim, call):
    calls = re.findall(r"custom_call @(\S+?)\(", exported(platform, dtype, head_dim))
    assert [name for name in calls if name != "Sharding"] == ([call] if call else [])


@pytest.mark.parametrize(
    ("implementation", "dtype", "head_dim", "reason"),
    [
        ("tpu", "float16", 64, "splash attention takes no float16"),
        ("interpret", "float16", 64, "splash attention takes no float16"),
        ("gpu", "float32", 64, "cuDNN attention takes bfloat16 and float16, not float32"),
        ("gpu", "bfloat16", 256, "cuDNN attention takes multiples of 8 up to 128 as head_dim, not 256"),
    ],
)
def test_a_named_library_that_does_not_take_the_shape_raises(implementation, dtype, head_dim, reason):
    with pytest.raises(ValueError, match=reason):
        exported("cpu", dtype, head_dim, implementation)


def test_cudnn_gets_the_scale_and_gives_float32():
    """The call is the one of ``jax.nn.dot_product_attention``, whose log-sum-exp is rounded only afterwards."""
    text = exported("cuda", "bfloat16", 64, "gpu")
    call = next(line for line in text.splitlines() if "__cudnn$fmhaSoftmax" in line)
    config = json.loads(re.search(r'backend_config = "(.*?)", ', call).group(1).replace("\\22", '"'))
    assert config["cudnn_fmha_backend_config"]["fmha_scale"] == 64**-0.5
    assert config["cudnn_fmha_backend_config"]["mask_type"] == "CAUSAL"
    assert "tensor<1x4x256xf32>" in call and "tensor<1x4x256x64xbf16>" in call
