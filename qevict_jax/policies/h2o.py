# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""H2O: heavy hitters, the tokens with the most attention so far, and the newest (arXiv:2306.14048, FMInference/H2O).

    score_j = sum over all queries i of a_(i,j), the prompt's and every generated token's; raw, not by number of queries

Half of the budget is for the newest tokens, the rest for the best of the others. Deviations:
- one set per KV head, its score the mean over the group (the original knows no groups);
- tokens leave every 8 steps instead of at each, so the newest are between ``recent`` and ``recent + 8``, their ring
  being half of the budget;
- nothing is added up over the batch, as the original's code does.
"""

from dataclasses import dataclass

from jaxtyping import Array, Bool, Float

from qevict_jax.checks import check_number
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan
from qevict_jax.policies.base import Prompt
from qevict_jax.policies.token_method import Candidates, Start
from qevict_jax.policies.token_plan import plan_token_rows
from qevict_jax.policies.token_policy import EVENT_STEPS, TokenPolicy
from qevict_jax.token_scores import column_sums
from qevict_jax.token_selection import ranks
from qevict_jax.types import KVShape


@dataclass(frozen=True)
class Options:
    """Parameters of H2O.

    Attributes:
        recent_share: share of the budget for the newest tokens; the paper's and the original's is half.
    """

    recent_share: float = 0.5

    def __post_init__(self) -> None:
        check_number("recent_share", self.recent_share, 0, 1)


@dataclass(frozen=True)
class H2O:
    """The method."""

    decay: float = 1.0
    per_head: bool = True
    layered: bool = False
    weighted: bool = False

    def start(self, prompt: Prompt, kernel: Float[Array, "H_D E"], per_head: int) -> Start:
        """Attention of all prompt queries."""
        return Start(column_sums(prompt.q, prompt.k, prompt.lse, prompt.length))

    def choose(self, candidates: Candidates) -> Bool[Array, "n"]:
        """The same number in every head."""
        c = candidates
        return ranks(c.score, c.valid, c.pinned, c.head) < c.capacity // c.heads

    def observed(self, probabilities: Float[Array, "B T K G n"]) -> Float[Array, "B K n"]:
        """Mean over the group, sum over queries."""
        return probabilities.sum(axis=1).mean(axis=2)

    def refresh(self, score: Float[Array, "*n"], seen: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The sum."""
        return score + seen

    def weigh(self, values: Float[Array, "B n K D"], kernel: Float[Array, "H_D E"]) -> None:
        """No weights."""


def plan_h2o(shape: KVShape, config: CacheConfig, options: Options, total_len: int, slot_multiple: int) -> CachePlan:
    """Rows of a budget, half of it in the ring."""

    def recent(tokens: int) -> int:
        return max(1, int(options.recent_share * tokens) - EVENT_STEPS)

    return plan_token_rows(shape, config, H2O(), total_len, slot_multiple, recent)


def make_h2o(plan: CachePlan, shape: KVShape, options: Options) -> TokenPolicy:
    """The policy."""
    return TokenPolicy(plan, H2O())
