# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""From a byte budget to static capacities: eq. 3 and eq. 8 of the paper, charged part by part."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from pallas_kernels.packing import planes
from pallas_kernels.quantized_windows import scalars_per_head
from qevict_jax.cache import TierLayout, abstract_cache, nbytes
from qevict_jax.config import CacheConfig
from qevict_jax.types import KVShape, QEvictError


@dataclass(frozen=True)
class CachePlan:
    """Capacities and bytes of one sequence.

    Attributes:
        config: what was asked for.
        total_len: tokens the cache must be able to see, prompt and output.
        layout: the tiers, None for the full cache.
        full_windows: F.
        quant_windows: windows in the quantized tier.
        kv_bytes: bytes of all arrays that live between steps.
        full_kv_bytes: bytes of a full cache of ``total_len`` tokens, eq. 7.
        parts: bytes by part; they add up to ``kv_bytes``.
    """

    config: CacheConfig
    total_len: int
    layout: TierLayout | None
    full_windows: int
    quant_windows: int
    kv_bytes: int
    full_kv_bytes: int
    parts: tuple[tuple[str, int], ...]

    @property
    def ratio(self) -> float:
        """``kv_bytes`` as a fraction of the full cache."""
        return self.kv_bytes / self.full_kv_bytes


def plan_cache(shape: KVShape, config: CacheConfig, total_len: int, *, slot_multiple: int = 1) -> CachePlan:
    """Capacities for a sequence of ``total_len`` tokens.

    Args:
        shape: the model's KV shape; its dtype is replaced by ``config.kv_dtype``.
        config: the cache.
        total_len: tokens of prompt and output together, the static capacity of the full cache.
        slot_multiple: code slots and local rows come in multiples of this, and if it is not 1, rows of small numbers in
            multiples of 128. 8 on TPU, where other counts make XLA move whole tiers (LOG.md).

    Raises:
        QEvictError: if the budget cannot hold sinks, ring and one window; the message names the smallest that works.
    """
    shape = replace(shape, dtype=config.kv_dtype)
    if total_len < 1:
        raise QEvictError(f"total_len={total_len} must be at least 1 token")
    full_bytes = shape.bytes_per_token * total_len
    if config.policy == "full":
        # beside keys and values there is one int32 length
        parts = (("keys and values", full_bytes), ("length", 4))
        return CachePlan(config, total_len, None, 0, 0, full_bytes + 4, full_bytes, parts)

    if config.budget_bytes is not None:
        budget = Fraction(config.budget_bytes)
    else:
        budget = Fraction(str(config.budget)) * full_bytes
    tiers = _Capacities(shape, config, total_len, slot_multiple)
    full_windows, quant_windows = tiers.fit(budget)
    if full_windows + quant_windows == 0 and tiers.most > 0:
        raise QEvictError(
            f"{_share(budget, full_bytes)} cannot hold the sinks, the ring of recent tokens and one window; "
            f"{_smallest(tiers.least_bytes(), full_bytes)}"
        )
    layout = tiers.layout(full_windows, quant_windows)
    parts = _parts(layout)
    kv_bytes = sum(size for _, size in parts)
    if tiers.most == 0 and kv_bytes > budget:
        raise QEvictError(
            f"{_share(budget, full_bytes)} cannot hold a cache that is all sinks and recent tokens, as it is at "
            f"{total_len} tokens; {_smallest(kv_bytes, full_bytes)}, or use policy='full'"
        )
    return CachePlan(config, total_len, layout, full_windows, quant_windows, kv_bytes, full_bytes, parts)


def _share(budget: Fraction, full_bytes: int) -> str:
    return f"a budget of {int(budget)} bytes per sequence, {float(budget / full_bytes):.4g} of the full cache,"


def _smallest(least: int, full_bytes: int) -> str:
    ratio = math.ceil(least / full_bytes * 1e4) / 1e4
    return f"the smallest budget that works is {ratio:.4f} (budget_bytes={least})"


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
