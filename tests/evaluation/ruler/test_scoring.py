# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""String match by hand."""

from qevict_jax.evaluation.ruler.scoring import match_all, match_part


def test_the_share_of_references_found():
    assert match_all(" 123 and 456", ["123", "456", "789", "12"]) == 0.75
    assert match_all("ABC", ["abc"]) == 1 and match_all("", ["abc"]) == 0
    # a control character becomes a line feed, in the middle too
    assert match_all("ab\x07c", ["abc"]) == 0 and match_all("\x07abc\x00", ["abc"]) == 1


def test_any_reference_is_enough():
    assert match_part("in Paris", ["the city of Paris", "Paris"]) == 1
    assert match_part("in London", ["the city of Paris", "Paris"]) == 0
