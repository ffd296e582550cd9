# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""CriticalKV: attention first, then attention times what the value does to the output (arXiv:2502.03805).

Head budgets b_h are AdaKV's (``floor`` < 1) or uniform (``floor`` = 1). Each head keeps its best ``first_stage * b_h``
by score, and fills up with the best by ``(score_j + eps) * n_j``, n_j = mean over g of ``||v_j Wo_(h,g)||_1``.
The first is CriticalAdaKVPress, the second CriticalKVPress of kvpress, by the method's author. Deviations:
- kvpress marks what the first stage keeps with a huge score and then multiplies that by n_j; here it is a mask;
- its head budgets are added up over the batch, ours are each sequence's own;
- the base score is `window_scores` (kvpress takes any press); n_j of generated tokens is computed as they leave the
  ring; while generating see `snapkv`.
"""

from dataclasses import dataclass

from jaxtyping import Array, Bool, Float

from qevict_jax.checks import check_number
from qevict_jax.config import CacheConfig
from qevict_jax.plan import CachePlan
from qevict_jax.policies import adakv
from qevict_jax.policies.base import Prompt
from qevict_jax.policies.token_method import Candidates, Start
from qevict_jax.policies.token_plan import plan_token_rows
from qevict_jax.policies.token_policy import TokenPolicy
from qevict_jax.token_selection import count_by_group, ranks
from qevict_jax.types import KVShape
from qevict_jax.value_norms import output_norms


@dataclass(frozen=True)
class Options(adakv.Options):
    """Parameters of CriticalKV: those of `adakv.Options` and its own, which are the paper's.

    Attributes:
        first_stage: share of a head's budget that goes by attention alone.
        eps: added to scores, which pooling may have left at zero.
    """

    first_stage: float = 0.5
    eps: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("first_stage", self.first_stage, 0, 1)
        check_number("eps", self.eps, 0)


@dataclass(frozen=True)
class CriticalKV(adakv.AdaKV):
    """The method."""

    options: Options
    weighted: bool = True

    def start(self, prompt: Prompt, kernel: Float[Array, "H_D E"], per_head: int) -> Start:
        """AdaKV's scores, and the value norms."""
        return super().start(prompt, kernel, per_head)._replace(weight=self.weigh(prompt.v, kernel))

    def choose(self, candidates: Candidates) -> Bool[Array, "n"]:
        """Two stages within the budgets of the heads."""
        c = candidates
        assert c.weight is not None
        budget = count_by_group(adakv.choose_jointly(c, self.options.floor) & c.valid, c.head, c.heads)[c.head]
        by_attention = ranks(c.score, c.valid, c.pinned, c.head)
        first = by_attention < (self.options.first_stage * budget.astype("float32")).astype("int32")
        return ranks((c.score + self.options.eps) * c.weight, c.valid, c.pinned | first, c.head) < budget

    def weigh(self, values: Float[Array, "B n K D"], kernel: Float[Array, "H_D E"]) -> Float[Array, "B n K"]:
        """The value norms n_j."""
        return output_norms(values, kernel)


def plan_criticalkv(
    shape: KVShape, config: CacheConfig, options: Options, total_len: int, slot_multiple: int
) -> CachePlan:
    """Rows of a budget."""
    recent = options.recent or options.window
    return plan_token_rows(shape, config, CriticalKV(options), total_len, slot_multiple, recent)


def make_criticalkv(plan: CachePlan, shape: KVShape, options: Options) -> TokenPolicy:
    """The policy."""
    return TokenPolicy(plan, CriticalKV(options))
