# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Variable tracking: a chain of assignments among filler lines (RULER, arXiv:2404.06654, section 3)."""

import random
import string
from dataclasses import dataclass, replace

from qevict_jax.evaluation.ruler.draft import Draft
from qevict_jax.evaluation.ruler.sources import NOISE

_EXAMPLE_LINES = 10  # of filler in the worked example, which should stay within about 500 tokens


@dataclass(frozen=True)
class VariableTracking:
    """One chain: a number, and variables each set to the one before. A unit of size is a filler line."""

    hops: int = 4

    @property
    def most(self) -> None:
        """Any size can be made."""

    def build(self, rng: random.Random, size: int) -> Draft:
        """A worked example with short names, then the sample."""
        example, shown = self._chain(rng, _EXAMPLE_LINES, 3), self._chain(rng, size, 5)
        solved = f"{example.text}\n{example.prefix} {' '.join(example.answers)}"
        return replace(shown, context=f"{solved}\n\n{shown.context}")

    def _chain(self, rng: random.Random, size: int, letters: int) -> Draft:
        names: list[str] = []
        while len(names) <= self.hops:
            name = "".join(rng.choices(string.ascii_uppercase, k=letters))
            if name not in names:
                names.append(name)
        value = str(rng.randint(10_000, 99_999))
        sources = [value, *(f"VAR {name}" for name in names[:-1])]
        statements = [f"VAR {name} = {source}" for name, source in zip(names, sources, strict=True)]
        lines = [NOISE] * size
        places = sorted(rng.randint(0, size) for _ in statements)
        for place, statement in zip(reversed(places), reversed(statements), strict=True):
            lines.insert(place, statement)
        context = "\n".join(lines)
        return Draft(
            f"Variables get their values in some lines of the text below. Follow who gets whose value.\n\n{context}\n",
            f"Question: which variables hold the value {value}, directly or by way of others?",
            f"Answer: in the text above, {len(names)} variables hold the value {value}, they are:",
            tuple(names),
        )
