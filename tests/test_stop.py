# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Stop strings found in text that comes in pieces of any size."""

from hypothesis import given
from hypothesis import strategies as st

from qevict_jax.stop import StopWatch


def shown(stops, pieces):
    watch = StopWatch(stops)
    text = "".join(watch.push(piece) for piece in pieces)
    return text + watch.flush(), watch.stopped


@given(st.lists(st.text("ab", max_size=4), max_size=8), st.text("ab", min_size=1, max_size=4))
def test_any_split_shows_the_text_up_to_the_stop(pieces, stop):
    whole = "".join(pieces)
    assert shown([stop], pieces) == (whole.partition(stop)[0], stop in whole)


@given(st.lists(st.text("ab", max_size=4), max_size=8), st.text("ab", min_size=1, max_size=4))
def test_what_was_shown_never_has_to_be_taken_back(pieces, stop):
    watch, text, whole = StopWatch([stop]), "", "".join(pieces)
    for piece in pieces:
        text += watch.push(piece)
        assert whole.partition(stop)[0].startswith(text)


def test_the_beginning_of_a_stop_string_is_held_back():
    watch = StopWatch(["\n\nUser:", "###"])
    assert [watch.push(piece) for piece in ("Yes.\n", "\nUse", "less", " #", "#")] == [
        "Yes.",
        "",
        "\n\nUseless",
        " ",
        "",
    ]
    assert not watch.stopped and watch.flush() == "##"


def test_nothing_comes_after_the_stop():
    watch = StopWatch(["."])
    assert watch.push("One. Two") == "One" and watch.stopped
    assert watch.push(" three") == "" and watch.flush() == ""


def test_the_first_of_several_stops_counts():
    assert StopWatch(["b", "a"]).cut("xxaxb") == "xx"
    assert shown(["b", "a"], ["xxaxb"]) == ("xx", True)


def test_without_stops_everything_passes_at_once():
    watch = StopWatch(())
    assert watch.push("abc") == "abc" and watch.flush() == ""
