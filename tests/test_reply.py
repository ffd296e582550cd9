# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens to the text of an answer, however they come."""

import pytest

from qevict_jax.engine import Drawn
from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.reply import Reply
from qevict_jax.types import QEvictError
from tests.tiny_tokenizer import END_OF_TURN, token_id, write_tokenizer

EOS = token_id(END_OF_TURN)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("reply")
    write_tokenizer(directory, has_bos=True, template="with_bos", config_style="v5")
    return Tokenizer.load(directory)


def pushed(tokenizer, tokens, size, stop=(), log_probs=None):
    """A reply after its tokens came in pieces of one size; the row ended with the last of them."""
    reply, shown = Reply(tokenizer, {EOS}, stop), []
    for at in range(0, len(tokens), size):
        part = tuple(tokens[at : at + size])
        given = None if log_probs is None else tuple(log_probs[at : at + size])
        shown.append(reply.push(Drawn(part, given, active=at + size < len(tokens))))
    return reply, "".join(shown)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_pieces_are_the_text(tokenizer, size):
    text = "the sand — and the sea ✓"
    tokens = tokenizer.encode(text, add_bos=False)
    reply, shown = pushed(tokenizer, tokens, size)
    assert shown == reply.text == text and reply.finish_reason == "length" and reply.tokens == tokens
    reply, shown = pushed(tokenizer, [*tokens, EOS], size)
    assert shown == reply.text == text and reply.finish_reason == "stop" and reply.tokens[-1] == EOS


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_stop_string_ends_it_and_what_follows_is_dropped(tokenizer, size):
    tokens = tokenizer.encode("the sand and the sea", add_bos=False)
    reply, shown = pushed(tokenizer, tokens, size, stop=["d the"], log_probs=[-float(i) for i, _ in enumerate(tokens)])
    assert shown == reply.text == "the sand an" and reply.finish_reason == "stop"
    assert tokenizer.decode(reply.tokens).startswith("the sand and the") and len(reply.tokens) < len(tokens)
    assert reply.log_probs == [-float(i) for i, _ in enumerate(reply.tokens)]


def test_half_a_character_and_half_a_stop_string_are_shown_at_the_end(tokenizer):
    tokens = tokenizer.encode("sea ✓", add_bos=False)[:-1]
    reply, shown = pushed(tokenizer, tokens, 1, stop=["a \ufffd!"])
    assert shown == reply.text == "sea \ufffd" and reply.finish_reason == "length"


def test_an_answer_that_goes_on_has_no_reason_yet(tokenizer):
    reply = Reply(tokenizer, {EOS}, ())
    assert reply.push(Drawn((5, 6), None, True)) and reply.finish_reason is None


def test_without_a_tokenizer_there_are_tokens_only():
    reply, shown = pushed(None, [1, 2, EOS], 2)
    assert (shown, reply.text, reply.tokens, reply.finish_reason) == ("", "", [1, 2, EOS], "stop")
    with pytest.raises(QEvictError, match="no tokenizer"):
        Reply(None, (), ["stop"])


def test_an_empty_stop_string_is_refused(tokenizer):
    with pytest.raises(QEvictError, match="empty stop string"):
        Reply(tokenizer, (), ["a", ""])
