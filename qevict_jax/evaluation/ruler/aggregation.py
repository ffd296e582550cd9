# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Common and frequent words: what comes up most in a long list (RULER, arXiv:2404.06654, section 3)."""

import math
import random
import string
from dataclasses import dataclass, replace

from qevict_jax.evaluation.ruler.draft import Draft
from qevict_jax.evaluation.ruler.sources import words

SHORT = 4096  # lengths below this use lists with fewer repetitions


@dataclass(frozen=True)
class CommonWords:
    """A numbered list in which ten words come up often. A unit of size is one more rare word.

    Attributes:
        length: tokens of the whole sample; short ones repeat less.
        common: words to find.
    """

    length: int
    common: int = 10

    @property
    def most(self) -> int:
        """As many rare words as there are words."""
        return len(words("adjective", "noun", "verb")) - self.common

    def build(self, rng: random.Random, size: int) -> Draft:
        """A worked example, then the sample."""
        short = self.length < SHORT
        example = self._list(rng, 20 if short else 40, 3 if short else 10, 1 if short else 3)
        shown = self._list(rng, self.common + size, 6 if short else 30, 1 if short else 3)
        solved = " ".join(f"{number}. {word}" for number, word in enumerate(example.answers, 1))
        return replace(shown, context=f"{example.text}\n{example.prefix} {solved}\n\n{shown.context}")

    def _list(self, rng: random.Random, vocabulary: int, often: int, rarely: int) -> Draft:
        chosen = rng.sample(words("adjective", "noun", "verb"), vocabulary)
        common, rare = chosen[: self.common], chosen[self.common :]
        listed = common * often + rare * rarely
        rng.shuffle(listed)
        numbered = " ".join(f"{number}. {word}" for number, word in enumerate(listed, 1))
        return Draft(
            "Some words of the numbered list below come up more often than the others. Remember the ones that come up "
            f"most often.\n{numbered}\n",
            f"Question: which {self.common} words come up most often in the list above?",
            f"Answer: the {self.common} words that come up most often in the list above are:",
            tuple(common),
        )


@dataclass(frozen=True)
class FrequentWords:
    """Coded words whose counts fall with their rank as in a zeta distribution. A unit of size is a word of text.

    Attributes:
        length: tokens of the whole sample; one word of the vocabulary per 50 of them.
        alpha: exponent; 2 as published.
        letters: of a coded word.
    """

    length: int
    alpha: float = 2.0
    letters: int = 6
    asked: int = 3

    @property
    def most(self) -> None:
        """Any size can be made."""

    def build(self, rng: random.Random, size: int) -> Draft:
        """The most frequent word is a row of dots, to be left out; the next three are asked for."""
        count = max(self.asked + 2, self.length // 50)
        vocabulary: list[str] = []
        while len(vocabulary) < count:
            word = "".join(rng.choices(string.ascii_lowercase, k=self.letters))
            if word not in vocabulary:
                vocabulary.append(word)
        vocabulary[0] = "..."
        text = [word for word, times in zip(vocabulary, self.counts(size, count), strict=True) for _ in range(times)]
        rng.shuffle(text)
        return Draft(
            "Keep count of each coded word of the text below. Afterwards name the three that come up most often.\n"
            f"{' '.join(text)}\n",
            "Question: which three coded words come up most often in the text above? Leave out the dots '...' and "
            "explain nothing.",
            "Answer: the three coded words that come up most often in the text above are:",
            tuple(vocabulary[1 : 1 + self.asked]),
        )

    def counts(self, size: int, vocabulary: int) -> list[int]:
        """How often the word of each rank is there: ``size * rank**-alpha / zeta(alpha)``, rounded down.

        The words asked for always come up more often than the ones behind them.
        """
        zeta = sum(k**-self.alpha for k in range(1, 10**5)) if self.alpha != 2.0 else math.pi**2 / 6
        raw = [int(size * rank**-self.alpha / zeta) for rank in range(1, vocabulary + 1)]
        behind = raw[self.asked + 1]
        for rank in range(self.asked, -1, -1):
            raw[rank] = behind = max(raw[rank], behind + 1)
        return raw
