# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Prompts read once and admitted by many cache policies.

The forward pass of a prompt does not depend on the cache, and it is most of the work when configurations are compared.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.float_bits import from_bits
from qevict_jax.config import CacheConfig
from qevict_jax.models.steps import Program
from qevict_jax.policies import Policy, Prompt, plan_cache
from qevict_jax.policies.full import DenseCache, Full
from qevict_jax.windows import KeyTransform


@struct.dataclass
class PromptRecord(DenseCache):
    """A full cache in the dtype of the model, and beside it what else `Policy.admit` gets to see."""

    q: Float[Array, "L B S H D"]
    lse: Float[Array, "L B S H"]


@dataclass(frozen=True)
class Recorder(Full):
    """The full cache that also keeps the queries of a prompt, ``plan.total_len`` tokens long."""

    heads: int = field(kw_only=True)

    def init(self, batch: int) -> PromptRecord:
        """An empty record."""
        dense = super().init(batch)
        rows = (self.shape.layers, batch, self.plan.total_len, self.heads)
        q = jnp.zeros((*rows, self.shape.head_dim), self.shape.dtype)
        return PromptRecord(dense.tokens, dense.length, q, jnp.zeros(rows, jnp.float32))

    def admit(self, cache: DenseCache, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform) -> PromptRecord:
        """Stores one layer of a prompt."""
        cache = super().admit(cache, layer, prompt, transform)
        assert isinstance(cache, PromptRecord)
        q = cache.q.at[layer].set(prompt.q.astype(cache.q.dtype))
        return replace(cache, q=q, lse=cache.lse.at[layer].set(prompt.lse))


def recorder_for(program: Program, dtype: str, size: int) -> Recorder:
    """The recorder of prompts of ``size`` tokens, in ``dtype``, that of the parameters."""
    shape = program.config.kv_shape(dtype)
    return Recorder(plan_cache(shape, CacheConfig.full(dtype), size), shape, heads=program.config.heads)


def admit_record(policy: Policy, record: PromptRecord, transform: KeyTransform) -> Any:
    """The cache that `steps.prefill` with this policy would have returned."""

    def admit(layer: Array, cache: Any) -> Any:
        tokens, q, lse = (
            lax.dynamic_index_in_dim(x, layer, axis=0, keepdims=False) for x in (record.tokens, record.q, record.lse)
        )
        apart = from_bits(tokens, str(q.dtype)).reshape(*tokens.shape[:2], -1, 2, q.shape[-1])
        prompt = Prompt(q, apart[..., 0, :], apart[..., 1, :], lse, record.length)
        return policy.admit(cache, layer, prompt, transform)

    cache = lax.fori_loop(0, record.q.shape[0], admit, policy.init(record.length.shape[0]))
    return policy.admitted(cache, record.length)
