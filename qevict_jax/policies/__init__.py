# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Cache policies by name: the table that the command line reads. README.md here says how to add a row."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from qevict_jax.config import CacheConfig
from qevict_jax.head_split import ONE_DEVICE, HeadSplit
from qevict_jax.plan import CachePlan, plan_tiers
from qevict_jax.policies import adakv, criticalkv, defensivekv, h2o, kivi, kvquant, snapkv, streaming_llm, zipcache
from qevict_jax.policies.base import Policy as Policy
from qevict_jax.policies.base import Prompt as Prompt
from qevict_jax.policies.full import Full, plan_full
from qevict_jax.policies.options import NoOptions, parse_options
from qevict_jax.policies.qevict import QEvict
from qevict_jax.types import BudgetError, KVShape, QEvictError

TPU_SLOT_MULTIPLE = 8


class Row(NamedTuple):
    """One policy. ``qevict_jax.config.POLICY_FIELDS`` says which settings it reads beside its own options.

    Attributes:
        options: frozen dataclass of its own parameters, read from `CacheConfig.policy_options`.
        plan: ``(shape, config, options, total_len, slot_multiple)`` to a plan; raises `BudgetError`.
        make: ``(plan, shape, options)`` to the policy.
        spread: ``(policy, split)`` to the policy of one of several devices that share the heads; or why there is none.
    """

    options: type
    plan: Callable[[KVShape, CacheConfig, Any, int, int], CachePlan]
    make: Callable[[CachePlan, KVShape, Any], Policy]
    spread: Callable[[Any, HeadSplit], Policy] | str


def _told(policy: Any, split: HeadSplit) -> Policy:
    return replace(policy, split=split)


def _alone(policy: Any, split: HeadSplit) -> Policy:
    """No head needs to know of another."""
    return policy


_RIVALRY = "its heads compete for one budget"
_SHARED_STEP = "the heads of a token share one step and offset"
_OUTLIERS = "it chooses the outliers of a token over all heads"


def _plan_qevict(shape: KVShape, config: CacheConfig, options: NoOptions, total_len: int, multiple: int) -> CachePlan:
    return plan_tiers(shape, config, total_len, multiple)


POLICIES = {
    "qevict": Row(NoOptions, _plan_qevict, lambda plan, shape, options: QEvict(plan), _told),
    "full": Row(NoOptions, plan_full, lambda plan, shape, options: Full(plan, shape), _alone),
    "streaming_llm": Row(
        streaming_llm.Options, streaming_llm.plan_streaming_llm, streaming_llm.make_streaming_llm, _alone
    ),
    "h2o": Row(h2o.Options, h2o.plan_h2o, h2o.make_h2o, _told),
    "snapkv": Row(snapkv.Options, snapkv.plan_snapkv, snapkv.make_snapkv, _told),
    "adakv": Row(adakv.Options, adakv.plan_adakv, adakv.make_adakv, _RIVALRY),
    "criticalkv": Row(criticalkv.Options, criticalkv.plan_criticalkv, criticalkv.make_criticalkv, _RIVALRY),
    "defensivekv": Row(defensivekv.Options, defensivekv.plan_defensivekv, defensivekv.make_defensivekv, _RIVALRY),
    "layer_defensivekv": Row(
        defensivekv.LayerOptions, defensivekv.plan_defensivekv, defensivekv.make_defensivekv, _RIVALRY
    ),
    "kivi": Row(kivi.Options, kivi.plan_kivi, kivi.make_kivi, _alone),
    "kvquant": Row(kvquant.Options, kvquant.plan_kvquant, kvquant.make_kvquant, _OUTLIERS),
    "zipcache": Row(zipcache.Options, zipcache.plan_zipcache, zipcache.make_zipcache, _SHARED_STEP),
}


def policy_options(config: CacheConfig) -> Any:
    """The record that ``config.policy_options`` describes.

    Raises:
        QEvictError: an unknown field or a bad value; the message names those there are.
    """
    return parse_options(config.policy, POLICIES[config.policy].options, config.policy_options)


def plan_cache(shape: KVShape, config: CacheConfig, total_len: int, *, slot_multiple: int = 1) -> CachePlan:
    """Capacities and bytes for a sequence of ``total_len`` tokens.

    Args:
        shape: the model's KV shape; its dtype is replaced by ``config.kv_dtype``.
        config: the cache.
        total_len: tokens of prompt and output together, the static capacity of the full cache.
        slot_multiple: slots come in multiples of this. 8 on TPU, where other counts make XLA move whole tiers (LOG.md).

    Raises:
        QEvictError: the policy has no such option.
        BudgetError: the budget is too small; the message names the smallest that works.
    """
    if total_len < 1:
        raise QEvictError(f"total_len={total_len} must be at least 1 token")
    shape = replace(shape, dtype=config.kv_dtype)
    return POLICIES[config.policy].plan(shape, config, policy_options(config), total_len, slot_multiple)


def make_policy(
    shape: KVShape,
    config: CacheConfig,
    total_len: int,
    *,
    platform: str | None = None,
    split: HeadSplit = ONE_DEVICE,
) -> Policy:
    """The policy that holds sequences of up to ``total_len`` tokens.

    Args:
        shape: the model's KV shape; ``config.kv_dtype`` replaces its dtype.
        config: the cache.
        total_len: static capacity, prompt and output.
        platform: "cpu", "gpu" or "tpu", the platform it will run on; default is jax's own. TPU rounds slots to 8.
        split: the devices that share the heads. The policy and its plan are those of one of them; a budget ratio is
            one of the full cache there, a budget in bytes is shared out evenly.

    Raises:
        QEvictError: if the budget is too small, the named implementation is not for that platform, or the heads of this
            policy cannot be on several devices.
    """
    platform = platform or jax.default_backend()
    if config.implementation in ("tpu", "gpu") and config.implementation != platform:
        raise QEvictError(
            f"implementation={config.implementation!r} cannot run on {platform!r}; 'auto', 'xla' and 'interpret' can"
        )
    row = POLICIES[config.policy]
    shape = replace(shape, dtype=config.kv_dtype, kv_heads=shape.kv_heads // split.kv_shards)
    plan = plan_part(shape, config, total_len, TPU_SLOT_MULTIPLE if platform == "tpu" else 1, split.devices)
    policy = row.make(plan, shape, policy_options(config))
    return policy if isinstance(row.spread, str) else row.spread(policy, split)


def budget_share(config: CacheConfig, devices: int) -> CacheConfig:
    """The cache of one of ``devices`` that share the heads: a budget in bytes is shared out evenly."""
    if devices == 1 or config.budget_bytes is None:
        return config
    return replace(config, budget_bytes=max(1, config.budget_bytes // devices))


def plan_part(shape: KVShape, config: CacheConfig, total_len: int, slot_multiple: int, devices: int) -> CachePlan:
    """The plan of one of ``devices`` that share the heads, for the ``shape`` that it holds itself.

    Raises:
        QEvictError: the heads of this policy cannot be on several devices.
        BudgetError: the budget is too small.
    """
    spread = POLICIES[config.policy].spread
    if devices > 1 and isinstance(spread, str):
        raise QEvictError(f"policy={config.policy!r} cannot run on a mesh with model={devices}: {spread}; data=N can")
    try:
        return plan_cache(shape, budget_share(config, devices), total_len, slot_multiple=slot_multiple)
    except BudgetError as error:
        if devices == 1:
            raise
        where = f"on each of the {devices} devices of a row"
        raise BudgetError(f"{where}, {error}; a budget in bytes is shared out over them") from None
