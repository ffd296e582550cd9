# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""`qevict chat` with a scripted user; the session itself is tested in tests/test_session.py."""

import pytest

import qevict_jax.session

FAST = ("--budget", "0.9", "--kv-dtype", "float32", "--max-context", "256", "--max-new-tokens", "4")


@pytest.mark.parametrize("end", ["/exit\nmore\n", ""], ids=["exit", "end of input"])
def test_turns_until_the_end(qevict, checkpoint, end):
    result = qevict("chat", checkpoint, *FAST, stdin="the sea\n\nand the sand\n" + end)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("KV cache") == 2  # an empty line is no turn
    assert "for 256 tokens" in result.stderr


def test_ctrl_c_ends_the_answer_and_not_the_program(qevict, checkpoint, monkeypatch):
    class Interrupted(qevict_jax.session.Session):
        def send(self, text, **options):
            pieces = super().send(text, **options)
            if text == "stop me":
                yield next(pieces)
                pieces.close()
                raise KeyboardInterrupt
            yield from pieces

    monkeypatch.setattr(qevict_jax.session, "Session", Interrupted)
    result = qevict("chat", checkpoint, *FAST, stdin="stop me\ngo on\n")
    assert result.exit_code == 0, result.output
    assert "[interrupted]" in result.stdout and result.stderr.count("KV cache") == 2


def test_a_conversation_that_is_too_long_goes_on(qevict, checkpoint):
    result = qevict("chat", checkpoint, *FAST, stdin="sea " * 300 + "\nthe sea\n")
    assert result.exit_code == 0 and "max_context=256" in result.stderr
    assert result.stderr.count("KV cache") == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--max-context", "40000"], "max_context=40000"),
        (["--max-new-tokens", "0"], "max_new_tokens=0"),
        (["--budget", "0.001"], "the smallest budget that works"),
    ],
)
def test_bad_input_is_one_line(refused, checkpoint, arguments, message):
    assert message in refused("chat", checkpoint, *arguments)
