# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What a method of token-level eviction decides; everything else is `token_policy`."""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Float, Int

from qevict_jax.policies.base import Prompt


class Start(NamedTuple):
    """Numbers for every token and KV head of one layer of a prompt.

    Attributes:
        score: importance, what later attention is added to.
        weight: a number beside it that never changes, or None.
        pinned: tokens that this selection keeps before all others, or None.
    """

    score: Float[Array, "B S K"]
    weight: Float[Array, "B S K"] | None = None
    pinned: Bool[Array, "B S K"] | None = None


class Candidates(NamedTuple):
    """Tokens of single heads among which one layer of one sequence chooses.

    Attributes:
        score: importance.
        weight: what `Start.weight` said, or None.
        pinned: rank before all others.
        head: KV head of each.
        valid: those that exist.
        capacity: how many can stay, over all heads.
        heads: K.
    """

    score: Float[Array, "n"]
    weight: Float[Array, "n"] | None
    pinned: Bool[Array, "n"]
    head: Int[Array, "n"]
    valid: Bool[Array, "n"]
    capacity: Int[Array, ""]
    heads: int


@runtime_checkable
class Method(Protocol):
    """A frozen record of static numbers; `per_head`, `layered` and `weighted` choose the storage (`RowLayout`)."""

    @property
    def per_head(self) -> bool: ...

    @property
    def layered(self) -> bool: ...

    @property
    def weighted(self) -> bool: ...

    @property
    def decay(self) -> float:
        """What an event leaves of older scores for every token that came since the last one; 1 for all."""
        ...

    def start(self, prompt: Prompt, kernel: Float[Array, "H_D E"], per_head: int) -> Start:
        """Scores a prompt. ``kernel`` is the layer's output projection, ``per_head`` the rows of a head on average."""
        ...

    def choose(self, candidates: Candidates) -> Bool[Array, "n"]:
        """The tokens that stay: all that are valid, or as many as the capacity allows."""
        ...

    def observed(self, probabilities: Float[Array, "B T K G n"]) -> Float[Array, "B K n"]:
        """What the attention of new queries says about every token, in the unit of the scores; 0 for none."""
        ...

    def refresh(self, score: Float[Array, "*n"], seen: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Scores after an observation; what was not seen (0) keeps its score."""
        ...

    def weigh(self, values: Float[Array, "B n K D"], kernel: Float[Array, "H_D E"]) -> Float[Array, "B n K"] | None:
        """Weights of tokens made since the prompt; None unless ``weighted``."""
        ...
