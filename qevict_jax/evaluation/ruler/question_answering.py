# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Questions about paragraphs hidden among other paragraphs (RULER, arXiv:2404.06654, section 3)."""

import random
from dataclasses import dataclass, field

from qevict_jax.evaluation.ruler.draft import Draft
from qevict_jax.evaluation.ruler.sources import Reading, Readings


@dataclass(frozen=True)
class QuestionAnswering:
    """One question of a file. A unit of size is one more paragraph: of the same article first, then any other."""

    readings: Readings = field(repr=False)
    reading: Reading

    @property
    def most(self) -> int:
        """As many other paragraphs as there are."""
        return len(self.readings.paragraphs) - len(self.reading.gold)

    def build(self, rng: random.Random, size: int) -> Draft:
        """The gold paragraphs and ``size`` others, shuffled."""
        reading = self.reading
        chosen = [*reading.gold, *rng.sample(reading.beside, min(size, len(reading.beside)))]
        more = len(reading.gold) + size - len(chosen)
        if more > 0:
            taken = {*reading.gold, *reading.beside}
            others = [index for index in range(len(self.readings.paragraphs)) if index not in taken]
            chosen += rng.sample(others, min(more, len(others)))
        rng.shuffle(chosen)
        documents = "\n\n".join(
            f"Document {number}:\n{self.readings.paragraphs[index]}" for number, index in enumerate(chosen, 1)
        )
        ask = "Answer the question from the documents. Give only the answer, in as few words as it takes."
        return Draft(f"{ask}\n\n{documents}\n\n", f"{ask}\n\nQuestion: {reading.question}", "Answer:", reading.answers)
