# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Devices that share rows, heads or both draw what one device draws, and know what one device knows."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from qevict_jax import CacheConfig
from tests.eight_devices.models import cache_of_one_device, finished, model_on

CACHES = {
    "tuned": CacheConfig.tuned(budget=0.6, kv_dtype="float32", recent=8, quant_fraction=0.4),
    "paper": CacheConfig.paper(budget=0.6, kv_dtype="float32", recent=8, quant_fraction=0.4),
    "full": CacheConfig.full("float32"),
    "snapkv": CacheConfig(policy="snapkv", budget=0.5, kv_dtype="float32", policy_options="window=8"),
    "h2o": CacheConfig(policy="h2o", budget=0.5, kv_dtype="float32"),
    "streaming_llm": CacheConfig(policy="streaming_llm", budget=0.5, kv_dtype="float32"),
    "kivi": CacheConfig(policy="kivi", kv_dtype="float32", policy_options="residual=16,group_size=8"),
}
CACHES |= {ranking: replace(CACHES["tuned"], ranking=ranking) for ranking in ("decay", "p_norm", "key_norm")}
SLOW = [("tuned", "data=8"), ("full", "data=2,model=2"), ("paper", "data=2,model=2")]
SLOW += [(name, "model=8") for name in CACHES if name != "full"]
CASES = [("tuned", "data=2,model=4"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]

# Sums in another order: of a few hundred terms of size 1 each may lose half a unit in the last place. No code lies so
# close to the middle between two that it is rounded otherwise.
TOLERANCE = 128 * np.finfo(np.float32).eps / 2
# Parameters of KIVI's codes are float16, and where one is rounded otherwise, so is what it decodes.
OF_CODES = np.finfo(np.float16).eps


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_tokens_scores_and_bytes(name, mesh):
    config = CACHES[name]
    alike = config if name in ("full", "kivi") else cache_of_one_device(config, mesh)
    one, many = finished(model_on(""), alike), finished(model_on(mesh), config)
    for slot in range(8):
        expected, found = one.row(slot), many.row(slot)
        assert found.tokens == expected.tokens
        tolerance = OF_CODES if name == "kivi" else TOLERANCE
        np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=tolerance, atol=tolerance)
    assert many.kv_bytes == many.plan.kv_bytes
    if config.policy == "qevict":
        check_knowledge(one.cache, many.cache)


def check_knowledge(one, many):
    """After an event every device has the scores of one device, bit for bit those of its neighbours."""
    known = ("full_window", "code_window", "dormant", "score", "mass", "length", "aged")
    for name in known:
        expected, found = getattr(one, name), getattr(many, name)
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
            b = np.asarray(b)
            assert (b == b[0]).all(), name
            if a.dtype == np.float32:
                np.testing.assert_allclose(b[0], a, rtol=TOLERANCE, atol=TOLERANCE)
            else:
                np.testing.assert_array_equal(b[0], a)
