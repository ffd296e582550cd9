# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""JSON and PNG of a fidelity run, from made-up results."""

import hashlib
import json

import pytest

from qevict_jax.config import CacheConfig
from qevict_jax.evaluation import FidelityResult, plot_fidelity, to_json
from qevict_jax.policies import plan_cache
from qevict_jax.types import KVShape, QEvictError

SHAPE = KVShape(layers=2, kv_heads=2, head_dim=64, dtype="bfloat16")
FAILED = FidelityResult(CacheConfig.tuned(budget=0.001), error="too small")


def result(config: CacheConfig, kl: tuple[float, ...]) -> FidelityResult:
    plan = plan_cache(SHAPE, config, 1024)
    return FidelityResult(
        config, plan, None, kl, (0.9,) * len(kl), (0.01,) * len(kl), (2.0,) * len(kl), plan.kv_bytes, plan.full_kv_bytes
    )


RESULTS = [
    *(result(CacheConfig.tuned(budget=b), (0.002 / b, 0.003 / b)) for b in (0.1, 0.4, 0.2)),
    *(result(CacheConfig.paper(budget=b), (0.03 / b, 0.04 / b)) for b in (0.2, 0.4)),
    FAILED,
]


def test_json_is_complete_and_serializable():
    document = to_json(RESULTS, model="m", text="some text", prefill=900, steps=124, offsets=(0, 50))
    document = json.loads(json.dumps(document))
    assert document["text_sha256"] == hashlib.sha256(b"some text").hexdigest()
    assert {"model", "prefill", "steps", "offsets", "jax", "device", "qevict_jax"} <= document.keys()
    first, failed = document["results"][0], document["results"][-1]
    assert first["kl"] == pytest.approx(0.025) and first["kl_by_offset"] == pytest.approx([0.02, 0.03])
    assert first["kv_bytes"] == RESULTS[0].plan.kv_bytes and first["name"] == "tuned"
    assert failed["error"] == "too small" and "kl" not in failed


def test_plot_is_a_png(tmp_path):
    path = tmp_path / "fidelity.png"
    plot_fidelity(RESULTS, path, title="made up")
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_nothing_to_plot_is_an_error(tmp_path):
    with pytest.raises(QEvictError, match="nothing to plot"):
        plot_fidelity([FAILED], tmp_path / "fidelity.png")
