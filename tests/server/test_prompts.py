# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""Request bodies: what is asked for takes effect, what is not supported is refused by name."""

import json

import pytest

from qevict_jax.sampling import Sampling
from qevict_jax.server.errors import ServerError
from qevict_jax.server.prompts import Reader

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def reader(model):
    return Reader(model, "tiny", max_context=64, max_new_tokens=60)


def completion(reader, **body):
    return reader.completion(json.dumps({"model": "tiny", "prompt": "hello"} | body).encode())


def chat(reader, **body):
    return reader.chat(json.dumps({"model": "tiny", "messages": HELLO} | body).encode())


def refused(call, *args, **body):
    with pytest.raises(ServerError) as caught:
        call(*args, **body)
    return caught.value


def test_all_parameters_take_effect(reader, model):
    body = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "seed": 9,
        "max_tokens": 3,
        "stop": ["a", "b"],
    }
    asked = completion(reader, **body, stream=True, stream_options={"include_usage": True}, user="someone", n=1)
    assert asked.request.ids == tuple(model.tokenizer.encode("hello"))
    assert asked.request.sampling == Sampling(temperature=0.5, top_k=7, top_p=0.25, min_p=0.125, seed=9)
    assert asked.request.max_new_tokens == 3 and asked.stop == ("a", "b")
    assert asked.stream and asked.include_usage


def test_defaults_are_those_of_the_api(reader):
    asked = completion(reader, temperature=None)
    sampling = asked.request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert asked.request.max_new_tokens == 16 and asked.stop == () and not asked.stream
    assert completion(reader).request.sampling.seed != sampling.seed
    assert chat(reader).request.max_new_tokens == 64 - len(chat(reader).request.ids)


def test_content_in_parts_is_content(reader):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert chat(reader, messages=[{"role": "user", "content": parts}]).request.ids == chat(reader).request.ids
    assert chat(reader, max_completion_tokens=5).request.max_new_tokens == 5


def test_seeds_of_64_bits_are_taken(reader):
    assert completion(reader, seed=-1).request.sampling.seed == 2**32 - 1


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2}, {"n": True}, {"best_of": 2}, {"echo": True}, {"suffix": "x"}, {"logprobs": 0}, {"logprobs": True},
        {"logit_bias": {"1": 2}}, {"frequency_penalty": 0.1}, {"presence_penalty": -1}, {"tools": [{}]},
        {"tool_choice": "auto"}, {"response_format": {"type": "json_object"}}, {"store": True}, {"colour": "blue"},
        {"max_completion_tokens": 3},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(reader, body):
    error = refused(completion, reader, **body)
    assert error.status == 400 and error.param in body and error.param in error.message


@pytest.mark.parametrize(
    "body", [{"n": 1}, {"tools": []}, {"logit_bias": {}}, {"presence_penalty": 0.0}, {"tools": None}], ids=str
)
def test_what_asks_for_nothing_is_fine(reader, body):
    completion(reader, **body)


@pytest.mark.parametrize(
    "name, values",
    [
        ("temperature", [-1, 2.5, "1", True, float("nan"), 10**400, [], {}]),
        ("top_p", [0, -0.5, 1.5, "x"]),
        ("min_p", [-0.1, 2]),
        ("top_k", [-1, 2**31, 0.5]),
        ("seed", [0.5, "1", 2**63]),
        ("max_tokens", [0, -3, 61, 2.0, "4"]),
        ("stop", [["a"] * 5, [""], "", [1], 7, {"a": 1}]),
        ("stream", ["yes", 1]),
        ("stream_options", [{"include_usage": True}, 5]),
        (
            "prompt",
            [None, [], 7, [1.5], [True], [300], [-1], ["a", "b"], [[]], [["a"]], {"a": 1}, [None], "\udc80"],
        ),
        ("model", [None, 7, "other"]),
    ],
)
def test_bad_values_are_refused(reader, name, values):
    for value in values:
        error = refused(completion, reader, **{name: value})
        assert error.status in (400, 404) and name in error.message, (value, error.message)


@pytest.mark.parametrize(
    "messages",
    [
        None, [], {}, "hello", ["hello"], [{}], [{"role": "user"}], [{"role": "tool", "content": "x"}],
        [{"role": "user", "content": 7}], [{"role": "user", "content": None}], [{"role": [], "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
        [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": "\ud800"}],
        [{"role": "assistant", "content": "x", "tool_calls": [{}]}],
        [{"role": "user", "content": "x", "name": "me"}],
    ],
    ids=str,
)  # fmt: skip
def test_bad_messages_are_refused(reader, messages):
    error = refused(chat, reader, messages=messages)
    assert error.status == 400 and error.message.startswith("messages")


def test_a_prompt_that_does_not_fit_is_told_by_how_much(reader):
    error = refused(completion, reader, prompt=[1] * 50, max_tokens=20)
    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert error.message == "the prompt has 50 tokens; with 20 for the answer that is over the context of 64 tokens"
    for limit in ({}, {"max_tokens": 60}, {"max_completion_tokens": 60}):
        assert refused(chat, reader, messages=[{"role": "user", "content": "x" * 99}], **limit).param == "messages"


def test_values_of_any_depth_are_refused(reader):
    """Python parses what it may not be able to print again."""
    for depth in range(600, 1100):
        body = b'{"model": "tiny", "prompt": "a", "stop": ' + b"[" * depth + b"]" * depth + b"}"
        assert refused(reader.completion, body).status == 400


def test_two_limits_are_one_too_many(reader):
    assert "not both" in refused(chat, reader, max_tokens=3, max_completion_tokens=3).message


def test_a_template_that_refuses_is_a_bad_request(reader, monkeypatch):
    from qevict_jax.types import QEvictError

    def refuse(messages):
        raise QEvictError("the chat template refuses this conversation: no")

    monkeypatch.setattr(reader.tokenizer, "chat", refuse)
    assert refused(chat, reader).status == 400
