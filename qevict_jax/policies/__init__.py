# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Cache policies by name. The table is what the command line and the law tests read."""

import jax

from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan, plan_cache
from qevict_jax.policies.base import Policy as Policy
from qevict_jax.policies.base import Prompt as Prompt
from qevict_jax.policies.full import Full
from qevict_jax.policies.qevict import QEvict
from qevict_jax.types import KVShape, QEvictError

TPU_SLOT_MULTIPLE = 8


def _full(plan: CachePlan, shape: KVShape) -> Policy:
    return Full(plan, shape)


def _qevict(plan: CachePlan, shape: KVShape) -> Policy:
    return QEvict(plan)


POLICIES = {"full": _full, "qevict": _qevict}


def make_policy(shape: KVShape, config: CacheConfig, total_len: int, *, platform: str | None = None) -> Policy:
    """The policy that holds sequences of up to ``total_len`` tokens.

    Args:
        shape: the model's KV shape; ``config.kv_dtype`` replaces its dtype.
        config: the cache.
        total_len: static capacity, prompt and output.
        platform: "cpu", "gpu" or "tpu", the platform it will run on; default is jax's own. TPU rounds slots to 8.

    Raises:
        QEvictError: if the budget is too small, or the named implementation is not for that platform.
    """
    platform = platform or jax.default_backend()
    if config.implementation in ("tpu", "gpu") and config.implementation != platform:
        raise QEvictError(
            f"implementation={config.implementation!r} cannot run on {platform!r}; 'auto', 'xla' and 'interpret' can"
        )
    plan = plan_cache(shape, config, total_len, slot_multiple=TPU_SLOT_MULTIPLE if platform == "tpu" else 1)
    shape = KVShape(shape.layers, shape.kv_heads, shape.head_dim, config.kv_dtype)
    return POLICIES[config.policy](plan, shape)
