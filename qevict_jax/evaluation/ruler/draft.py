# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A RULER sample before it is fitted to a length, and the fitting."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from qevict_jax.types import QEvictError

_SHRINK = 200  # a sample that is too long gets shorter by this part of its size at a time


@dataclass(frozen=True)
class Draft:
    """A sample as text.

    Attributes:
        context: what the model is told first.
        question: what it is asked about that.
        prefix: how its answer begins.
        answers: what a right answer holds.
    """

    context: str
    question: str
    prefix: str
    answers: tuple[str, ...]

    @property
    def text(self) -> str:
        """Context and question."""
        return self.context + self.question


@runtime_checkable
class Task(Protocol):
    """Makes samples of any size. The same generator state gives the same question whatever the size."""

    @property
    def most(self) -> int | None:
        """The largest size that can be made; None if there is none."""
        ...

    def build(self, rng: random.Random, size: int) -> Draft:
        """A sample with ``size`` units of haystack: lines, words or documents, whatever the task counts in."""
        ...


def largest_size(tokens: Callable[[int], int], limit: int, most: int | None = None) -> int:
    """The largest size up to ``most`` whose sample has at most ``limit`` tokens, by doubling and then halving.

    Raises:
        QEvictError: not even a sample without haystack fits.
    """
    least = tokens(0)
    if least > limit:
        raise QEvictError(f"the question alone has {least} tokens of the {limit} there are; give a larger length")
    most = limit if most is None else most  # a unit has a token at least
    low, high = 0, 1
    while high <= most and tokens(high) <= limit:
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens(middle) <= limit else (low, middle)
    return low


def fitting_size(tokens: Callable[[int], int], size: int, limit: int) -> int:
    """A size at or below ``size`` whose sample has at most ``limit`` tokens.

    Raises:
        QEvictError: there is none.
    """
    step = max(1, size // _SHRINK)
    while (length := tokens(size)) > limit:
        if size == 0:
            raise QEvictError(f"the question alone has {length} tokens of the {limit} there are; give a larger length")
        size = max(0, size - step)
    return size
