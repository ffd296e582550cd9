# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""How the heads of a sequence lie on several devices, and the means over them that a policy may need."""

from dataclasses import dataclass
from typing import TypeVar

from jax import lax

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class HeadSplit:
    """Every device holds ``H / devices`` query heads and ``K / kv_shards`` KV heads, all of the same number.

    Attributes:
        devices: over how many devices the query heads are spread.
        kv_shards: over how many the KV heads are; below ``devices`` each KV head is on ``devices / kv_shards`` of them.
        axes: mesh axes over which the query heads are spread; none on one device.
        group_axes: those over which the query heads of one KV head are spread.
    """

    devices: int = 1
    kv_shards: int = 1
    axes: tuple[str, ...] = ()
    group_axes: tuple[str, ...] = ()

    def mean(self, local: Tree) -> Tree:
        """Mean over all heads, from the means over the heads of each device; the same bits on all devices."""
        return lax.pmean(local, self.axes) if self.axes else local

    def group_mean(self, local: Tree) -> Tree:
        """Mean over the query heads of a KV head, from the means over those of them that each device has."""
        return lax.pmean(local, self.group_axes) if self.group_axes else local


ONE_DEVICE = HeadSplit()
