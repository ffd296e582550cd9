# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""From a byte budget to the rows of token-level eviction: every array that lives between steps is charged."""

import math
from collections.abc import Callable
from dataclasses import fields

from qevict_jax.cache import nbytes
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan, budget_in_bytes, too_small
from qevict_jax.policies.token_method import Method
from qevict_jax.policies.token_policy import EVENT_STEPS
from qevict_jax.policies.token_rows import RowLayout, abstract_rows
from qevict_jax.types import KVShape

_NAMES = {
    "ring": "recent tokens",
    "ring_score": "scores of recent tokens",
    "rows": "kept tokens",
    "position": "positions",
    "score": "scores",
    "weight": "value weights",
    "owner": "heads of rows",
    "pinned": "pins",
    "begin": "layer segments",
    "length": "length",
    "start": "length",
}


def plan_token_rows(
    shape: KVShape,
    config: CacheConfig,
    method: Method,
    total_len: int,
    slot_multiple: int,
    recent: int | Callable[[int], int],
    layer_share: float = 1.0,
) -> CachePlan:
    """The most tokens per head that fit the budget.

    Args:
        shape: the KV shape in the dtype of storage.
        config: the cache.
        method: what the storage is for.
        total_len: static capacity.
        slot_multiple: ring and rows come in multiples of this.
        recent: newest tokens that no event evicts, or how many from the tokens per head that the budget could hold.
        layer_share: the most that one layer may hold, as a multiple of the mean.

    Raises:
        BudgetError: the budget cannot hold the ring and one token per head.
    """
    full_bytes = shape.bytes_per_token * total_len
    budget = budget_in_bytes(config, full_bytes)

    def layout(per_head: int, recent: int) -> RowLayout:
        rows = shape.kv_heads * per_head
        most = min(math.ceil(rows * layer_share), shape.layers * rows) if method.layered else rows
        return RowLayout(
            shape=shape,
            rows=rows,
            most=most,
            recent=recent,
            ring=-(-(recent + EVENT_STEPS) // slot_multiple) * slot_multiple,
            per_head=method.per_head,
            layered=method.layered,
            weighted=method.weighted,
        )

    def size(per_head: int, recent: int) -> int:
        return nbytes(abstract_rows(layout(per_head, recent), 1))

    step = slot_multiple
    per_token = (size(2 * step, 1) - size(step, 1)) // step
    if not isinstance(recent, int):
        recent = recent(min(total_len, int(budget // per_token)))
    least = size(step, recent)
    if least > budget:
        raise too_small(budget, full_bytes, f"{recent} recent tokens, {EVENT_STEPS} new ones and one more", least)
    most = max(1, total_len - recent)  # tokens that ever leave the ring
    per_head = min(step * (1 + int((budget - least) // (per_token * step))), -(-most // step) * step)
    made = layout(per_head, recent)
    cache = abstract_rows(made, 1)
    parts: dict[str, int] = {}
    for field in fields(cache):
        if field.name in _NAMES:
            name = _NAMES[field.name]
            parts[name] = parts.get(name, 0) + nbytes(getattr(cache, field.name))
    capacities = (("recent tokens", made.recent), ("slots of their ring", made.ring), ("tokens per head", per_head))
    if method.layered:
        capacities += (("rows of one layer at most", made.most),)
    return CachePlan(config, total_len, made, sum(parts.values()), full_bytes, tuple(parts.items()), capacities)
