# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What the model asks of a cache policy.

A policy is a frozen record of static numbers with pure functions on a cache pytree, so it can be a static argument of
``jax.jit``. A cache has ``length``, int32 ``[B]``: the tokens each row has seen.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Array, Bool, Float, Int, Int8

from qevict_jax.plan import CachePlan
from qevict_jax.windows import KeyTransform

Cache = TypeVar("Cache")


@dataclass(frozen=True)
class Prompt:
    """Queries, keys and values of one layer over a prompt, after bias and RoPE, and its attention's log-sum-exp."""

    q: Float[Array, "B S H D"]
    k: Float[Array, "B S K D"]
    v: Float[Array, "B S K D"]
    lse: Float[Array, "B S H"]
    length: Int[Array, "B"]


class Tier(IntEnum):
    """Where the keys and values of a position are; what `Policy.placement` returns, as int8."""

    UNSEEN = 0  # at or beyond the row's length
    EVICTED = 1  # gone for good
    FULL = 2  # kept in full precision because it ranks high
    QUANTIZED = 3  # kept as codes
    RECENT = 4  # in full precision while it is new
    SINK = 5  # in full precision, always


@runtime_checkable
class Policy(Protocol[Cache]):
    """One way to hold a KV cache."""

    @property
    def plan(self) -> CachePlan:
        """Capacities and bytes."""
        ...

    @property
    def event_steps(self) -> int:
        """Decode steps between two calls of `route`, and the most tokens `attend` takes at once."""
        ...

    def init(self, batch: int) -> Cache:
        """An empty cache."""
        ...

    def admit(self, cache: Cache, layer: Int[Array, ""], prompt: Prompt, transform: KeyTransform) -> Cache:
        """Stores one layer of a prompt."""
        ...

    def admitted(self, cache: Cache, length: Int[Array, "B"]) -> Cache:
        """Closes a prefill, after all layers."""
        ...

    def attend(
        self,
        cache: Cache,
        layer: Int[Array, ""],
        q: Float[Array, "B T H D"],
        tokens: Float[Array, "B T K_2_D"],
        valid: Bool[Array, "B T"],
        transform: KeyTransform,
    ) -> tuple[Cache, Float[Array, "B T H D"], Any]:
        """Stores new tokens of one layer, at positions ``length ..``, and attends; also what `observe` wants."""
        ...

    def observe(self, cache: Cache, seen: Any, count: Int[Array, "B"]) -> Cache:
        """Takes what `attend` saw in all layers, stacked, and advances each row by its count of tokens."""
        ...

    def route(self, cache: Cache, transform: KeyTransform) -> Cache:
        """The event after every ``event_steps`` decode steps or chunk of tokens."""
        ...

    def placement(self, cache: Cache) -> Int8[Array, "L B heads S"]:
        """The `Tier` of positions ``0 .. plan.total_len - 1``; the axis is K, or 1 if the heads of a layer share it."""
        ...
