# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""LongBench's metrics by hand. ROUGE-L figures were computed with the package `rouge` 1.0.1."""

import pytest

from qevict_jax.evaluation.longbench.metrics import (
    class_match,
    count_share,
    edit_similarity,
    retrieval_share,
    rouge_l,
    token_f1,
)


@pytest.mark.parametrize(
    "text, reference, f1",
    [
        ("The  Eiffel Tower!", "eiffel tower", 1.0),
        ("It is the Eiffel tower in Paris", "an Eiffel tower", 4 / 8),
        ("a a b", "a b b", 2 * 1 / 3),  # "a" is an article
        ("x x y", "x y y", 2 * 2 / 6),
        ("", "x", 0.0),
        ("the", "the", 0.0),
        ("well-known", "well known", 0.0),
    ],
)
def test_token_f1(text, reference, f1):
    assert token_f1(text, reference) == pytest.approx(f1)


@pytest.mark.parametrize(
    "text, reference, f",
    [
        ("the cat sat", "the cat sat", 1.0),
        ("the cat sat on the mat", "the cat lay on the mat", 0.8),  # 4 of 5 distinct words on each side
        ("b a", "a b", 0.5),
        ("a b. c d.", "c d. a b.", 1.0),  # sentences in any order
        ("a b c d", "d c b a", 0.25),
        ("", "a", 0.0),
        (".", "a", 0.0),
        ("a . .", "a", 2 / 3),  # a sentence of white space is an empty word
    ],
)
def test_rouge_l(text, reference, f):
    assert rouge_l(text, reference) == pytest.approx(f)


def test_class_match():
    classes = ["Date", "Number", "Other number", "Currency name"]
    assert class_match("The type is Date", "Date", classes) == 1
    assert class_match("Date or Number", "Number", classes) == 0.5
    # a name within the right name is no second answer; the other way round it is
    assert class_match("Other number", "Other number", ["number", "Other number"]) == 1
    assert class_match("Other number", "number", ["number", "Other number"]) == 0.5
    assert class_match("Place", "Date", classes) == 0 and class_match("Date", "Number", classes) == 0


def test_shares_of_numbers():
    assert count_share("There are 12 of 30 paragraphs, so 12.", "12") == 2 / 3
    assert count_share("none", "12") == 0 and count_share("1 2", "12") == 0
    assert retrieval_share("Paragraph 7 and Paragraph 17", "Paragraph 7") == 0.5
    assert retrieval_share("seven", "Paragraph 7") == 0


def test_edit_similarity():
    assert edit_similarity("\n# a comment\nreturn x\nmore", "return x") == 1
    assert edit_similarity("return y", "return x") == pytest.approx(14 / 16)
    assert edit_similarity("// only this", "return x") == 0 and edit_similarity("", "x") == 0
