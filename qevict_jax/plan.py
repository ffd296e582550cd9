# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""From a byte budget to static capacities: the record that every policy plans into, and the plan of the tiers."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from pallas_kernels.packing import planes
from pallas_kernels.quantized_windows import scalars_per_head
from qevict_jax.cache import TierLayout, abstract_cache, nbytes
from qevict_jax.config import CacheConfig
from qevict_jax.types import BudgetError, KVShape


@dataclass(frozen=True)
class CachePlan:
    """Capacities and bytes of one sequence.

    Attributes:
        config: what was asked for.
        total_len: tokens the cache must be able to see, prompt and output.
        layout: the static numbers of the policy's cache, a hashable record of the policy's own kind.
        kv_bytes: bytes of all arrays that live between steps.
        full_kv_bytes: bytes of a full cache of ``total_len`` tokens, eq. 7; several devices may have a KV head each.
        parts: bytes by part; they add up to ``kv_bytes``.
        capacities: what the cache has room for, in words and numbers, for people; on each device.
        devices: that hold a part of the sequence; bytes are those of all, layout and capacities of each.
    """

    config: CacheConfig
    total_len: int
    layout: Any
    kv_bytes: int
    full_kv_bytes: int
    parts: tuple[tuple[str, int], ...]
    capacities: tuple[tuple[str, int], ...]
    devices: int = 1

    @property
    def full_windows(self) -> int:
        """F of the tiers; 0 for a cache without windows."""
        return self.layout.full_windows if isinstance(self.layout, TierLayout) else 0

    @property
    def quant_windows(self) -> int:
        """Windows in the quantized tier; 0 for a cache without windows."""
        return self.layout.quant_windows if isinstance(self.layout, TierLayout) else 0

    @property
    def ratio(self) -> float:
        """``kv_bytes`` as a fraction of the full cache."""
        return self.kv_bytes / self.full_kv_bytes

    def on(self, devices: int) -> "CachePlan":
        """The plan of several devices, from that of one of them."""
        return replace(
            self,
            kv_bytes=self.kv_bytes * devices,
            full_kv_bytes=self.full_kv_bytes * devices,
            parts=tuple((name, size * devices) for name, size in self.parts),
            devices=devices,
        )


def budget_in_bytes(config: CacheConfig, full_bytes: int) -> Fraction:
    """The budget of one sequence, a share of ``full_bytes`` or given in bytes."""
    if config.budget_bytes is not None:
        return Fraction(config.budget_bytes)
    return Fraction(str(config.budget)) * full_bytes


def too_small(budget: Fraction, full_bytes: int, what: str, least: int) -> BudgetError:
    """The error of a budget that cannot hold ``what``, for which ``least`` bytes are needed."""
    ratio = math.ceil(least / full_bytes * 1e4) / 1e4
    return BudgetError(
        f"a budget of {int(budget)} bytes per sequence, {float(budget / full_bytes):.4g} of the full cache, cannot "
        f"hold {what}; the smallest budget that works is {ratio:.4f} (budget_bytes={least})"
    )


def plan_tiers(shape: KVShape, config: CacheConfig, total_len: int, slot_multiple: int) -> CachePlan:
    """Capacities of the three tiers: eq. 3 and eq. 8 of the paper.

    Args:
        shape: the KV shape in the dtype of storage.
        config: the cache.
        total_len: tokens of prompt and output together, the static capacity of the full cache.
        slot_multiple: code slots and local rows come in multiples of this, and if it is not 1, rows of small numbers in
            multiples of 128.

    Raises:
        BudgetError: if the budget cannot hold sinks, ring and one window.
    """
    full_bytes = shape.bytes_per_token * total_len
    budget = budget_in_bytes(config, full_bytes)
    tiers = _Capacities(shape, config, total_len, slot_multiple)
    full_windows, quant_windows = tiers.fit(budget)
    if full_windows + quant_windows == 0 and tiers.most > 0:
        what = "the sinks, the ring of recent tokens and one window"
        raise too_small(budget, full_bytes, what, tiers.least_bytes())
    layout = tiers.layout(full_windows, quant_windows)
    parts = _parts(layout)
    kv_bytes = sum(size for _, size in parts)
    if tiers.most == 0 and kv_bytes > budget:
        what = f"a cache that is all sinks and recent tokens, as it is at {total_len} tokens (policy='full' takes less)"
        raise too_small(budget, full_bytes, what, kv_bytes)
    capacities = (
        ("sink tokens", layout.sink),
        ("slots of the ring of recent tokens", layout.ring),
        ("tokens of a window", layout.window),
        ("full-precision windows", full_windows),
        (f"INT{layout.bits} windows", quant_windows),
    )
    return CachePlan(config, total_len, layout, kv_bytes, full_bytes, parts, capacities)


class _Capacities:
    """Bytes as a function of capacities, all from the shapes of the arrays themselves."""

    def __init__(self, shape: KVShape, config: CacheConfig, total_len: int, slot_multiple: int) -> None:
        self.shape, self.config, self.multiple = shape, config, slot_multiple
        self.most = max(0, (total_len - config.sink - config.recent) // config.window)  # windows that ever age
        self.ranked = config.residency == "ranked"
        self.paper = config.accounting == "paper"

    def layout(self, full_windows: int, quant_windows: int) -> TierLayout:
        config = self.config
        dormant = full_windows if self.ranked and quant_windows else 0
        codes = self._code_slots(quant_windows + dormant) if quant_windows else 0
        return TierLayout(
            shape=self.shape,
            window=config.window,
            sink=config.sink,
            recent=config.recent,
            ring=config.ring,
            local_rows=self._round(config.ring + config.sink),
            full_windows=full_windows,
            quant_windows=quant_windows,
            code_slots=codes,
            scalar_row=self._round(
                self.shape.kv_heads * scalars_per_head(config.window, config.param_bits), lanes=True
            ),
            bits=config.bits,
            param_bits=config.param_bits,
            ranked=self.ranked and quant_windows > 0,
            event_mass=config.ranking in ("decay", "p_norm"),
        )

    def bytes(self, full_windows: int, quant_windows: int) -> int:
        """What the accounting charges for these capacities."""
        layout = self.layout(full_windows, quant_windows)
        if not self.paper:
            return nbytes(abstract_cache(layout, 1))
        # values, codes and parameters of the tiers, and recent tokens instead of the ring; dormant codes are left out
        parts = dict(_parts(replace(layout, code_slots=quant_windows)))
        protected = (self.config.sink + self.config.recent) * self.shape.bytes_per_token
        return protected + parts["full windows"] + parts["codes"] + parts["parameters"]

    def fit(self, budget: Fraction) -> tuple[int, int]:
        """Eq. 3 with the costs of this accounting, then as many windows as really fit."""
        left = budget - self.bytes(0, 0)
        if left <= 0 or self.most == 0:
            return 0, 0
        share, base = self.share, self.bytes(0, 0)
        quant_cost = self.bytes(0, self.multiple) - base
        if share == 0:
            return min(self.most, int(left // (self.bytes(1, 0) - base))), 0
        full_windows = min(self.most, int((1 - share) * left // self.full_cost))
        quant_windows = int(share * left // quant_cost) * self.multiple
        if full_windows + quant_windows == 0 and quant_cost <= left:
            quant_windows = self.multiple
        quant_windows = min(quant_windows, self.most - full_windows)
        while quant_windows > 0 and self.bytes(full_windows, quant_windows) > budget:
            quant_windows -= 1
        return full_windows, quant_windows

    @property
    def share(self) -> Fraction:
        """q of eq. 3."""
        return Fraction(str(self.config.quant_fraction))

    @property
    def full_cost(self) -> Fraction:
        """One more full window beside a quantized tier: with "ranked" it pays for its dormant codes too."""
        return Fraction(self.bytes(self.multiple, self.multiple) - self.bytes(0, self.multiple), self.multiple)

    def least_bytes(self) -> int:
        """The smallest budget of which `fit` makes a window."""
        share = self.share
        if share == 0:
            return self.bytes(1, 0)
        quantized = self.bytes(0, 1)
        if share == 1:
            return quantized
        # code slots may come in eights, and then a single full slot can cost less
        return min(quantized, self.bytes(0, 0) + math.ceil(self.full_cost / (1 - share)))

    def _code_slots(self, count: int) -> int:
        slots = self._round(count)
        # XLA:TPU tiles an uint8 array of 32 rows in one way in a program's arguments and in another in its loops
        tiled_twice = any(plane.dtype == "uint8" for plane in planes(self.config.bits, self.config.window))
        return slots + self.multiple if self.multiple > 1 and tiled_twice and slots % 32 == 0 else slots

    def _round(self, count: int, lanes: bool = False) -> int:
        multiple = self.multiple if not lanes or self.multiple == 1 else 128
        return -(-count // multiple) * multiple


def _parts(layout: TierLayout) -> tuple[tuple[str, int], ...]:
    """Bytes of one sequence by part, from the arrays of the cache."""
    cache = abstract_cache(layout, 1)
    row_bytes = layout.shape.bytes_per_token
    codes = cache.codes
    return (
        ("sinks", layout.sink * row_bytes),
        ("ring", (layout.local_rows - layout.sink) * row_bytes),
        ("full windows", nbytes(cache.full)),
        ("codes", nbytes(codes.codes) if codes else 0),
        ("parameters", nbytes((codes.key_params, codes.scalars)) if codes else 0),
        ("window index", nbytes((cache.full_window, cache.code_window))),
        ("ledger", nbytes(cache.dormant)),
        ("scores", nbytes((cache.score, cache.mass))),
        ("length", nbytes((cache.length, cache.aged))),
    )
