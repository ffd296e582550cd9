# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What a query sees in a cache, by the kind of cache: a new storage is one more row here."""

from typing import Any

import numpy as np

from qevict_jax.cache import TieredCache
from qevict_jax.policies.full import DenseCache
from qevict_jax.policies.kivi import KiviCache
from qevict_jax.policies.kvquant import KVQuantCache
from qevict_jax.policies.streaming_llm import SinkAndRing
from qevict_jax.policies.token_rows import TokenRows
from qevict_jax.policies.zipcache import ZipCache
from tests import coded_contents, row_contents, tier_contents
from tests.float64_model import Context, Float64Model


def _dense(cache: DenseCache, layer: int, row: int, model: Float64Model, dtype: str) -> tuple[Context, np.ndarray]:
    at = np.arange(cache.length[row])
    tokens = tier_contents.numbers(cache.tokens[layer, row, at], dtype)
    tokens = tokens.reshape(len(at), model.config.kv_heads, 2, model.config.head_dim)
    return Context(tokens[:, :, 0], tokens[:, :, 1], at), at


CONTEXTS = {
    DenseCache: _dense,
    TieredCache: tier_contents.context,
    TokenRows: row_contents.rows_context,
    SinkAndRing: row_contents.sink_and_ring_context,
    KiviCache: coded_contents.kivi_context,
    ZipCache: coded_contents.zipcache_context,
    KVQuantCache: coded_contents.kvquant_context,
}


def context(cache: Any, layer: int, row: int, model: Float64Model, dtype: str) -> tuple[Context, np.ndarray]:
    """Everything that one layer of one row attends to, and the window of each token if the cache has windows."""
    return CONTEXTS[type(cache)](cache, layer, row, model, dtype)
