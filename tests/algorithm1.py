# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 of the paper as a program on Python sets, for one layer of one sequence."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Algorithm1:
    """Tiers and scores.

    Attributes:
        full_windows: F.
        quant_windows: Q.
        ranked: residency "ranked", else "exact".
        ranking: "cumulative", "decay", "p_norm" or "key_norm".
    """

    full_windows: int
    quant_windows: int
    ranked: bool
    ranking: str
    score: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    mass: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    full: set[int] = field(default_factory=set)
    codes: set[int] = field(default_factory=set)
    aged: int = 0

    def start(self, mass: dict[int, float], aged: int, key_score: dict[int, float]) -> None:
        """After prefill: the best F windows stay as they are, the next Q are quantized."""
        for window, received in mass.items():
            self.score[window] = received**3 if self.ranking == "p_norm" else received
        if self.ranking == "key_norm":
            self.score.update(key_score)
        best = self._order(range(aged))
        self.full = set(best[: self.full_windows])
        self.codes = set(best[self.full_windows : self.full_windows + self.quant_windows])
        self.aged = aged

    def observe(self, mass: dict[int, float]) -> None:
        """One decode step."""
        for window, received in mass.items():
            self.mass[window] += received
        if self.ranking == "cumulative":
            self._close()

    def event(self, arrives: bool, key_score: dict[int, float]) -> None:
        """One routing event; the next window has left the ring, or not. Scores by keys are given for that window."""
        self._close()
        candidates = self.full | self.codes
        if arrives:
            candidates.add(self.aged)
            self.score.update(key_score)
            self.aged += 1
        retained = self._order(candidates)[: self.full_windows + self.quant_windows]
        if self.ranked:
            self.full = set(retained[: self.full_windows])
        else:
            never_quantized = [window for window in retained if window not in self.codes]
            self.full = set(never_quantized[: self.full_windows])
        self.codes = set(retained) - self.full

    def _close(self) -> None:
        """Mass into scores. A row that was not fed since the last event has no mass, and its scores do not fade."""
        if not self.mass:
            return
        for window in set(self.score) | set(self.mass):
            mass, score = self.mass[window], self.score[window]
            if self.ranking == "cumulative":
                self.score[window] = score + mass
            elif self.ranking == "decay":
                self.score[window] = 0.99 * score + mass
            elif self.ranking == "p_norm":
                self.score[window] = score + mass**3
        self.mass.clear()

    def _order(self, windows) -> list[int]:
        """Highest score first, of equal ones the older window."""
        return sorted(windows, key=lambda window: (-self.score[window], window))
