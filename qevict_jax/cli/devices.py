# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""What fits on a device: its memory, less weights and a margin, against the bytes of a cache."""

from collections.abc import Callable
from dataclasses import dataclass

from qevict_jax.config import CacheConfig
from qevict_jax.policies import plan_cache
from qevict_jax.types import BudgetError, KVShape

LONGEST = 2**24


@dataclass(frozen=True)
class Device:
    """A kind of accelerator.

    Attributes:
        name: as its maker calls it.
        memory: bytes of device memory of one chip.
        slot_multiple: granularity of the cache there, see `plan_cache`.
    """

    name: str
    memory: int
    slot_multiple: int


# Device memory of one chip as published by Google Cloud and NVIDIA, in GB = 10**9 bytes.
DEVICES = tuple(
    Device(name, gigabytes * 10**9, slot_multiple)
    for name, gigabytes, slot_multiple in (
        ("TPU v5e", 16, 8),
        ("TPU v5p", 95, 8),
        ("TPU v6e", 32, 8),
        ("A100-80", 80, 1),
        ("H100", 80, 1),
        ("H200", 141, 1),
    )
)


@dataclass(frozen=True)
class Fit:
    """What one device holds with one cache configuration. ``LONGEST`` stands for that many tokens or more."""

    longest_context: int
    largest_batch: int


def fit(device: Device, room: int, shape: KVShape, config: CacheConfig, context: int, batch: int) -> Fit:
    """The longest context at a batch size and the largest batch at a context length.

    Args:
        device: where.
        room: bytes that the cache may take.
        shape: the model's KV shape.
        config: the cache.
        context: tokens of each sequence, for the largest batch.
        batch: sequences, for the longest context.
    """

    def row_bytes(length: int) -> int | None:
        try:
            return plan_cache(shape, config, length, slot_multiple=device.slot_multiple).kv_bytes
        except BudgetError:  # too short for its budget
            return None

    longest = largest(lambda length: batch * (row_bytes(length) or 0) <= room, LONGEST)
    if longest and row_bytes(longest) is None:
        longest = 0
    per_row = row_bytes(context)
    return Fit(longest, 0 if per_row is None else room // per_row)


def largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest n in 1 .. ``most`` for which ``holds(n)``, by bisection; 0 if there is none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
