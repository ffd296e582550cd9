# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The live view of `qevict generate --watch`."""

import io

import numpy as np
import pytest
from rich.console import Console

from qevict_jax.cli import watch as module
from qevict_jax.cli.watch import check_watch, tier_map, view, watch
from qevict_jax.config import CacheConfig
from qevict_jax.generate import stream
from qevict_jax.models import load_model
from qevict_jax.policies.base import Tier
from qevict_jax.types import QEvictError

TIERS = np.array([Tier.SINK, *[Tier.EVICTED] * 3, *[Tier.QUANTIZED] * 3, Tier.FULL, *[Tier.RECENT] * 2], np.int8)


def drawn(renderable, width=40):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    console.print(renderable)
    return console.file.getvalue()


def test_a_cell_is_a_position_as_long_as_they_fit():
    assert tier_map(TIERS, 40).plain == "S···▒▒▒█▄▄"
    assert "\x1b[34m█" in drawn(tier_map(TIERS, 40))


def test_a_cell_shows_most_of_its_positions():
    # 100 positions in 8 lines of 4 cells are 4 to a cell
    cells = [Tier.SINK] * 2 + [Tier.EVICTED] * 8 + [Tier.QUANTIZED] * 10 + [Tier.RECENT] * 5
    tiers = np.repeat(np.array(cells, np.int8), 4)
    tiers[5] = tiers[50] = Tier.FULL  # one of four does not show
    assert tier_map(tiers, 4).plain == "SS" + "·" * 8 + "▒" * 10 + "▄" * 5


def test_the_view_counts_tokens_and_leaves_out_what_is_not_there():
    placement = np.array([[*TIERS, Tier.UNSEEN, Tier.UNSEEN]], np.int8)
    found = drawn(view("one two", placement, layer=3, width=80), 200)
    assert "one two" in found and "layer 3, 10 tokens" in found and "KV head" not in found
    for words in ("sink 1", "evicted 3", "quantized 3", "full precision 1", "recent 2"):
        assert words in found
    assert "KV head 0" in drawn(view("", np.repeat(placement, 2, axis=0), layer=3, width=80), 200)


def test_long_text_shows_its_end():
    found = drawn(view("a\n" * 50 + "the end", TIERS[None], layer=0, width=80), 200)
    assert "the end" in found and found.count("a\n") < 12


def test_a_stream_is_drawn_and_its_text_returned(checkpoint):
    def answer():
        return stream(
            load_model(checkpoint),
            "the sand and the sea and the stars over an island",
            cache=CacheConfig.full("float32"),
            max_new_tokens=4,
        )

    pieces, console = answer(), Console(file=io.StringIO(), width=80, force_terminal=True)
    assert watch(pieces, 1, console) == "".join(answer()) == pieces.result.text
    length = pieces.result.prompt_tokens + len(pieces.result.tokens)
    assert f"layer 1, {length - 1} tokens" in console.file.getvalue()


def test_no_placement_before_the_first_piece(checkpoint):
    with pytest.raises(QEvictError, match="nothing has been generated"):
        stream(load_model(checkpoint), "a", cache=CacheConfig.full("float32")).placement()


def test_layers(monkeypatch):
    monkeypatch.setattr(module.sys, "stdout", type("Terminal", (), {"isatty": lambda self: True})())
    assert check_watch(None, 30) == 15 and check_watch(0, 30) == 0
    with pytest.raises(QEvictError, match="layers 0 to 29"):
        check_watch(30, 30)


@pytest.mark.parametrize(
    "arguments, message", [(["--watch"], "standard output is none"), (["--watch-layer", "1"], "without --watch")]
)
def test_refusals(refused, checkpoint, arguments, message):
    assert message in refused("generate", checkpoint, "a", *arguments)
