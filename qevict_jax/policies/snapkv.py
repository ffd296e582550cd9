# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""SnapKV: per head the tokens that the end of the prompt attends to (arXiv:2404.14469, FasterDecoding/SnapKV).

Score as in `window_scores`; each head keeps the best and the window itself. Deviations:
- one set per KV head, its score the mean over the group: the original repeats KV heads and stores G times as much;
- probabilities stay float32;
- while generating (the original keeps everything from then on): the observation window moves on with the queries.
  Every step adds its attention, ``score_j += 1/W mean over g of a_(g,j)``, not pooled, and an event multiplies older
  scores by ``decay`` for every token that came. A plain sum (``decay=1``) measured 5 to 11% more KL.
"""

from dataclasses import dataclass

from jaxtyping import Array, Bool, Float

from qevict_jax.checks import check_integer, check_number, check_one_of
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan
from qevict_jax.policies.base import Prompt
from qevict_jax.policies.token_method import Candidates, Start
from qevict_jax.policies.token_plan import plan_token_rows
from qevict_jax.policies.token_policy import TokenPolicy
from qevict_jax.policies.window_scores import window_scores
from qevict_jax.token_scores import POOLS
from qevict_jax.token_selection import ranks
from qevict_jax.types import KVShape


@dataclass(frozen=True)
class Options:
    """Parameters of SnapKV. The original's class has window 64, kernel 5, "avg", its LongBench files 32, 7, "max".

    Attributes:
        window: W, prompt queries that score, and prompt tokens kept whatever their score.
        kernel: tokens that are pooled; 1 for none.
        pool: "avg" or "max".
        recent: newest tokens safe from eviction while generating; 0 for as many as the window.
        decay: what an event leaves of older scores for every token that came; 1 for all of them.
    """

    window: int = 32
    kernel: int = 7
    pool: str = "max"
    recent: int = 0
    decay: float = 0.9

    def __post_init__(self) -> None:
        check_integer("window", self.window, 1)
        check_integer("kernel", self.kernel, 1)
        check_one_of("pool", self.pool, POOLS)
        check_integer("recent", self.recent, 0)
        check_number("decay", self.decay, 0, 1)


@dataclass(frozen=True)
class SnapKV:
    """The method."""

    options: Options
    per_head: bool = True
    layered: bool = False
    weighted: bool = False

    @property
    def decay(self) -> float:
        """See `Options`."""
        return self.options.decay

    def start(self, prompt: Prompt, kernel: Float[Array, "H_D E"], per_head: int) -> Start:
        """Pooled attention of the last W queries."""
        return window_scores(prompt, self.options.window, self.options.kernel, self.options.pool)

    def choose(self, candidates: Candidates) -> Bool[Array, "n"]:
        """The same number in every head."""
        c = candidates
        return ranks(c.score, c.valid, c.pinned, c.head) < c.capacity // c.heads

    def observed(self, probabilities: Float[Array, "B T K G n"]) -> Float[Array, "B K n"]:
        """Mean over the group, sum over queries, in the unit of a mean over W."""
        return probabilities.sum(axis=1).mean(axis=2) / self.options.window

    def refresh(self, score: Float[Array, "*n"], seen: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The sum."""
        return score + seen

    def weigh(self, values: Float[Array, "B n K D"], kernel: Float[Array, "H_D E"]) -> None:
        """No weights."""


def plan_snapkv(shape: KVShape, config: CacheConfig, options: Options, total_len: int, slot_multiple: int) -> CachePlan:
    """Rows of a budget."""
    recent = options.recent or options.window
    return plan_token_rows(shape, config, SnapKV(options), total_len, slot_multiple, recent)


def make_snapkv(plan: CachePlan, shape: KVShape, options: Options) -> TokenPolicy:
    """The policy."""
    return TokenPolicy(plan, SnapKV(options))
