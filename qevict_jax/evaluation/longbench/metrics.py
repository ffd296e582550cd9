# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""LongBench's metrics, each from an answer, one reference and the classes of the row to 0 .. 1."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"\d+")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def token_f1(text: str, reference: str, classes: Sequence[str] = ()) -> float:
    """F1 of the bags of words, normalised as for SQuAD: lower case, no punctuation, no articles."""
    ours, theirs = _normal(text), _normal(reference)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def rouge_l(text: str, reference: str, classes: Sequence[str] = ()) -> float:
    """ROUGE-L F1 of summaries: the words of the longest common subsequences of all pairs of sentences, united.

    Sentences end at points and words at white space; every distinct word counts once, as in the package that LongBench
    scores with (https://pypi.org/project/rouge).
    """
    # of a sentence of white space that package makes one empty word
    ours, theirs = (
        [" ".join(part.split()).split(" ") for part in whole.split(".") if part] for whole in (text, reference)
    )
    words = [{word for sentence in side for word in sentence} for side in (ours, theirs)]
    if not words[0] or not words[1]:
        return 0.0
    union = {word for a in theirs for b in ours for word in _common_subsequence(a, b)}
    return 2 * len(union) / (len(words[0]) + len(words[1]))


def class_match(text: str, reference: str, classes: Sequence[str] = ()) -> float:
    """One over the number of class names in the answer, if the right one is among them.

    Names that are a proper part of the right name do not count as an answer of their own.
    """
    found = [name for name in classes if name in text]
    found = [name for name in found if name == reference or name not in reference]
    return 1 / len(found) if reference in found else 0.0


def count_share(text: str, reference: str, classes: Sequence[str] = ()) -> float:
    """The share of numbers in the answer that are the right one."""
    return _share(text, reference)


def retrieval_share(text: str, reference: str, classes: Sequence[str] = ()) -> float:
    """The share of numbers in the answer that are the right paragraph's; the reference reads "Paragraph 12"."""
    number = _NUMBER.search(reference)
    return _share(text, number.group()) if number else 0.0


def edit_similarity(text: str, reference: str, classes: Sequence[str] = ()) -> float:
    """Code: the first line that is no comment, compared by matching characters (``2 * matches / both lengths``)."""
    lines = text.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    if not line or not reference:
        return 0.0
    # the longest common subsequence is what insertions and deletions leave
    return 2 * len(_common_subsequence(line, reference)) / (len(line) + len(reference))


def _normal(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _share(text: str, right: str) -> float:
    numbers = _NUMBER.findall(text)
    return numbers.count(right) / len(numbers) if numbers else 0.0


def _common_subsequence(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """One longest common subsequence; where several exist, the one that skips the end of ``a`` last."""
    lengths = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, left in enumerate(a):
        for j, right in enumerate(b):
            lengths[i + 1][j + 1] = lengths[i][j] + 1 if left == right else max(lengths[i][j + 1], lengths[i + 1][j])
    i, j, found = len(a), len(b), []
    while i and j:
        if a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            found.append(a[i])
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found[::-1]
