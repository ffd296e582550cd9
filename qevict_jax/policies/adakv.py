# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""AdaKV: SnapKV's scores, with budgets that heads compete for (arXiv:2407.11550, FFY0/AdaKV).

Of the ``K*N`` tokens of a layer each head keeps its best ``floor * N``; the rest are the best of all heads together.
Storage is packed, a row per token and head, so that the bytes are those of a uniform budget and a head number per row.
Deviations:
- the original takes ``round(n_h * (1 - floor)) + int(N * floor)`` tokens of a head with n_h among the best of all;
  those do not add up to K*N. The rule here is kvpress's, except that it counts the floor from N without the window;
- KV heads are never repeated; probabilities stay float32; while generating see `snapkv`.
"""

from dataclasses import dataclass

from jaxtyping import Array, Bool, Float

from qevict_jax.checks import check_number
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan
from qevict_jax.policies import snapkv
from qevict_jax.policies.base import Prompt
from qevict_jax.policies.token_method import Candidates, Start
from qevict_jax.policies.token_plan import plan_token_rows
from qevict_jax.policies.token_policy import TokenPolicy
from qevict_jax.policies.window_scores import window_scores
from qevict_jax.token_selection import ranks
from qevict_jax.types import KVShape


@dataclass(frozen=True)
class Options(snapkv.Options):
    """Parameters of AdaKV: those of `snapkv.Options`, in which the original has 32, 7 and "max", and a floor.

    Attributes:
        floor: share of a uniform head budget that every head keeps; 0.2 in the original's LongBench script and kvpress.
    """

    floor: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("floor", self.floor, 0, 1)


@dataclass(frozen=True)
class AdaKV(snapkv.SnapKV):
    """The method."""

    options: Options
    per_head: bool = False

    def start(self, prompt: Prompt, kernel: Float[Array, "H_D E"], per_head: int) -> Start:
        """Pooled attention of the last W queries; the original takes the mean over the group first."""
        return window_scores(prompt, self.options.window, self.options.kernel, self.options.pool, group_first=True)

    def choose(self, candidates: Candidates) -> Bool[Array, "n"]:
        """Each head's best up to the floor, then the best of all heads."""
        return choose_jointly(candidates, self.options.floor)


def choose_jointly(candidates: Candidates, floor: float) -> Bool[Array, "n"]:
    """As many as the capacity: pinned ones, then each head's best ``floor`` of a uniform share, then the best."""
    c = candidates
    in_head = ranks(c.score, c.valid, c.pinned, c.head)
    safe = in_head < (floor * (c.capacity // c.heads).astype("float32")).astype("int32")
    return ranks(c.score, c.valid, c.pinned | safe) < c.capacity


def plan_adakv(shape: KVShape, config: CacheConfig, options: Options, total_len: int, slot_multiple: int) -> CachePlan:
    """Rows of a budget."""
    recent = options.recent or options.window
    return plan_token_rows(shape, config, AdaKV(options), total_len, slot_multiple, recent)


def make_adakv(plan: CachePlan, shape: KVShape, options: Options) -> TokenPolicy:
    """The policy."""
    return TokenPolicy(plan, AdaKV(options))
