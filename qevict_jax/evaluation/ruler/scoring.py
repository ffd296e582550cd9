# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""RULER's string match: references are looked for in the answer, without regard to case."""

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f]")


def match_all(text: str, references: Sequence[str]) -> float:
    """The share of references that are in the answer."""
    text = _clean(text)
    return sum(reference.lower() in text for reference in references) / len(references)


def match_part(text: str, references: Sequence[str]) -> float:
    """1 if any reference is in the answer, else 0."""
    return float(match_all(text, references) > 0)


def _clean(text: str) -> str:
    return _CONTROL.sub("\n", text.strip()).strip().lower()
