# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Needles in a haystack: magic values said of keys somewhere in a long text (RULER, arXiv:2404.06654, section 3)."""

import random
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from qevict_jax.evaluation.ruler.draft import Draft
from qevict_jax.evaluation.ruler.sources import NOISE, words

_DEPTHS = tuple(round(100 * i / 39) for i in range(40))  # percent of the text, as in RULER
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_DIGITS = 7


@dataclass(frozen=True)
class Needles:
    """A task of the needle family.

    Attributes:
        haystack: "noise" lines, "essay" sentences, or "needle": other needles. A unit of size is a line, or a word of
            an essay.
        essay: words of the long text, for "essay".
        key: "words" or "uuids".
        value: "numbers" or "uuids".
        keys: keys in the text.
        values: values of each key.
        queries: keys that are asked for.
    """

    haystack: str
    essay: tuple[str, ...] = field(default=(), repr=False)
    key: str = "words"
    value: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1

    def build(self, rng: random.Random, size: int) -> Draft:
        """A sample with ``size`` lines or words of haystack."""
        seen: set[str] = set()
        held = [
            (key, [_fresh(rng, self.value, seen) for _ in range(self.values)])
            for key in [_fresh(rng, self.key, seen) for _ in range(self.keys)]
        ]
        asked = rng.sample(held, self.queries)
        needles = [self._needle(key, value) for key, values in held for value in values]
        rng.shuffle(needles)
        context = self._essay(rng, size, needles) if self.haystack == "essay" else self._lines(rng, size, needles, seen)
        answers = tuple(value for _, values in asked for value in values)
        query = _enumerate([key for key, _ in asked])
        one = len(answers) == 1
        thing = self.value[:-1] if one else self.value
        which, verb = ("What is the", "is") if one else ("What are all the", "are")
        return Draft(
            f"Some special magic {self.value} are hidden in the text below. Remember them well, there will be a "
            f"question about them after it.\n{context}\n",
            f"{which} special magic {thing} for {query} mentioned in the text above?",
            f"The special magic {thing} for {query} mentioned in the text above {verb}",
            answers,
        )

    @property
    def most(self) -> None:
        """Any size can be made."""

    def _needle(self, key: str, value: str) -> str:
        return f"One of the special magic {self.value} for {key} is: {value}."

    def _lines(self, rng: random.Random, size: int, needles: list[str], seen: set[str]) -> str:
        if self.haystack == "noise":
            lines = [NOISE] * size
        else:
            lines = [self._needle(_fresh(rng, self.key, seen), _fresh(rng, self.value, seen)) for _ in range(size)]
        for needle in needles:
            lines.insert(rng.randint(0, len(lines)), needle)
        return "\n".join(lines)

    def _essay(self, rng: random.Random, size: int, needles: list[str]) -> str:
        repeats = -(-size // len(self.essay))
        sentences = [part for part in _SENTENCE.split(" ".join((self.essay * repeats)[:size])) if part]
        depths = sorted(rng.sample(_DEPTHS, len(needles)), reverse=True)
        # from the back, so that a needle does not move the place of the next
        for depth, needle in zip(depths, needles, strict=True):
            sentences.insert(len(sentences) * depth // 100, needle)
        return " ".join(sentences)


def _fresh(rng: random.Random, kind: str, seen: set[str]) -> str:
    """A key or value that is not in the sample yet."""
    while (made := _MAKERS[kind](rng)) in seen:
        pass
    seen.add(made)
    return made


def _pair(rng: random.Random) -> str:
    return f"{rng.choice(words('adjective'))}-{rng.choice(words('noun'))}"


def _number(rng: random.Random) -> str:
    return str(rng.randint(10 ** (_DIGITS - 1), 10**_DIGITS - 1))


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


_MAKERS: dict[str, Callable[[random.Random], str]] = {"words": _pair, "numbers": _number, "uuids": _uuid}


def _enumerate(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])}, and {names[-1]}"
