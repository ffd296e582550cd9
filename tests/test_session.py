# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A conversation on one cache: what a turn feeds is what a reader of the whole conversation would see."""

import copy
import dataclasses
import os
import signal

import pytest

from qevict_jax import CacheConfig, QEvictError, Session, generate
from qevict_jax.interrupts import interrupts_deferred
from tests.converted import load_converted
from tests.tiny_tokenizer import END_OF_TURN

FULL = CacheConfig.full("float32")
TIERED = CacheConfig(budget=0.5, kv_dtype="float32", recent=8)
DRAWN = 11


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that never ends by itself, so that a reply has a known length."""
    model = load_converted(tmp_path_factory.mktemp("session"), "llama")
    tokenizer = copy.copy(model.tokenizer)
    tokenizer.eos_ids = frozenset()
    return dataclasses.replace(model, tokenizer=tokenizer)


def next_turn(model, text):
    """Ids of what the template puts between two replies."""
    return model.tokenizer.encode(f"{END_OF_TURN}[user]{text}{END_OF_TURN}[assistant]", add_bos=False)


def answer(model, ids):
    """What the full cache says after reading everything again."""
    return generate(model, [ids], cache=FULL, max_new_tokens=DRAWN)[0].tokens


def test_turns_continue_the_conversation_exactly(model):
    session = Session(model, cache=FULL, max_context=256)
    ids: list[int] = []
    for text in ("the sea and the hand", "more of the same, please", "and then"):
        list(session.send(text, max_new_tokens=DRAWN))
        ids += next_turn(model, text) if ids else model.tokenizer.chat([{"role": "user", "content": text}])
        assert session.result.tokens == answer(model, ids)
        ids += session.result.tokens
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 3


def test_a_reply_that_is_cut_short_stays_in_the_conversation(model):
    session = Session(model, cache=FULL, max_context=256)
    reply = session.send("the sea", max_new_tokens=DRAWN)
    next(reply)
    with pytest.raises(QEvictError, match="still goes on"):
        session.send("go on")
    reply.close()
    said = session.result.tokens
    assert 0 < len(said) < DRAWN
    list(session.send("go on", max_new_tokens=DRAWN))
    ids = model.tokenizer.chat([{"role": "user", "content": "the sea"}])
    assert session.result.tokens == answer(model, [*ids, *said, *next_turn(model, "go on")])


@pytest.mark.parametrize("given_up", ["unread", "while it is read", "before it is decoded"])
def test_a_turn_that_is_given_up_before_its_reply_stays_in_the_conversation(model, monkeypatch, given_up):
    session = Session(model, cache=FULL, max_context=256)
    list(session.send("the sea", max_new_tokens=DRAWN))
    said, engine = session.result.tokens, session._engine
    reply = session.send("and a turn of more tokens than an event has steps", max_new_tokens=DRAWN)
    if given_up != "unread":
        name = "feed" if given_up == "while it is read" else "insert"
        whole = getattr(engine, name)

        def interrupted(*args):
            monkeypatch.undo()
            with interrupts_deferred():
                result = whole(*args)
                os.kill(os.getpid(), signal.SIGINT)
            return result

        monkeypatch.setattr(engine, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(reply)
    middle = session.result.tokens if given_up == "before it is decoded" else ()
    list(session.send("go on", max_new_tokens=DRAWN))
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 3
    with pytest.raises(QEvictError if given_up == "unread" else StopIteration):
        next(reply)
    ids = model.tokenizer.chat([{"role": "user", "content": "the sea"}])
    ids += [*said, *next_turn(model, "and a turn of more tokens than an event has steps"), *middle]
    assert session.result.tokens == answer(model, ids + next_turn(model, "go on"))


def test_the_cache_does_not_grow(model):
    session = Session(model, cache=TIERED, max_context=256)
    lengths = []
    for text in ("one", "two, which is longer than W tokens", "three"):
        list(session.send(text, max_new_tokens=DRAWN))
        assert session.result.kv_bytes == session.plan.kv_bytes
        lengths.append(session.length)
    assert lengths == sorted(lengths) and session.plan.ratio <= 0.5


def test_a_stop_string_ends_a_reply_and_the_next_turn_works(model):
    session = Session(model, cache=TIERED, max_context=256)
    full_text = "".join(session.send("the sea", max_new_tokens=DRAWN))
    again = Session(model, cache=TIERED, max_context=256)
    stop = full_text[3:5]
    shown = "".join(again.send("the sea", max_new_tokens=DRAWN, stop=[stop]))
    assert shown == full_text[: full_text.index(stop)] and again.result.finish_reason == "stop"
    assert "".join(again.send("and", max_new_tokens=4))


def test_a_conversation_that_outgrows_its_context_is_told_before_anything_is_lost(model):
    session = Session(model, cache=FULL, max_context=64)
    list(session.send("short", max_new_tokens=4))
    before = session.length
    with pytest.raises(QEvictError, match=r"max_context=64 leaves no room.*larger max_context"):
        session.send("long " * 40)
    assert session.length == before and len(session.messages) == 2
    list(session.send("ok", max_new_tokens=2))


def test_bad_input(model):
    with pytest.raises(QEvictError, match="max_context=0 must lie in 1"):
        Session(model, max_context=0)
    with pytest.raises(QEvictError, match="empty message"):
        Session(model, cache=FULL, max_context=64).send("  ")
    with pytest.raises(QEvictError, match="max_new_tokens=0 must be at least 1"):
        Session(model, cache=FULL, max_context=64).send("one", max_new_tokens=0)
    with pytest.raises(QEvictError, match="no chat template"):
        Session(dataclasses.replace(model, tokenizer=None))


def test_a_template_that_rewrites_earlier_turns_is_refused(model, monkeypatch):
    session = Session(model, cache=FULL, max_context=128)
    list(session.send("one", max_new_tokens=2))
    render = model.tokenizer.render
    monkeypatch.setattr(model.tokenizer, "render", lambda messages: render(messages[-1:]))
    with pytest.raises(QEvictError, match="rewrites earlier turns"):
        session.send("two")
