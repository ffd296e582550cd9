# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The server over loopback, as the `openai` client and as a careless one see it."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.server.conftest import CONTEXT, NAME, QUEUE, SLOTS, Running, hold

GREEDY = {"model": NAME, "temperature": 0}
CHAT = GREEDY | {"messages": [{"role": "user", "content": "the sand and the sea"}], "max_tokens": 20}
LONG = GREEDY | {"prompt": "the", "max_tokens": 100}


@pytest.fixture(scope="module")
def client(running):
    with running.client() as client:
        yield client


@pytest.fixture(scope="module")
def answer(client):
    return client.chat.completions.create(**CHAT)


def test_a_chat_is_answered(answer, model):
    assert answer.object == "chat.completion" and answer.model == NAME
    assert answer.usage.prompt_tokens == len(model.tokenizer.chat(CHAT["messages"]))
    assert answer.usage.completion_tokens == 20 and answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.role == "assistant" and len(answer.choices[0].message.content) > 5


def test_a_stream_says_the_same_in_pieces(client, answer):
    chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant" and len(chunks) > 4
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length" and chunks[-1].usage == answer.usage
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_completion_of_text_and_of_its_ids_is_the_same(client, model):
    options = GREEDY | {"max_tokens": 9}
    text = client.completions.create(prompt="the sea", **options)
    ids = client.completions.create(prompt=model.tokenizer.encode("the sea"), **options)
    pieces = client.completions.create(prompt=["the sea"], stream=True, **options)
    assert text.choices[0].text == ids.choices[0].text == "".join(piece.choices[0].text for piece in pieces)
    assert text.usage == ids.usage and text.object == "text_completion"
    assert client.completions.create(model=NAME, prompt="the sea").usage.completion_tokens == 16


def test_answers_do_not_depend_on_company(client, answer):
    """More clients than slots and places in the queue together would refuse, so as many as both hold."""
    with ThreadPoolExecutor(SLOTS + QUEUE) as pool:
        answers = list(pool.map(lambda _: client.chat.completions.create(**CHAT), range(SLOTS + QUEUE)))
    assert {other.choices[0].message.content for other in answers} == {answer.choices[0].message.content}


def test_seeds_and_stops_take_effect(client, answer):
    def text(**changes):
        return client.chat.completions.create(**CHAT | {"temperature": 2} | changes).choices[0].message.content

    assert text(seed=-5) == text(seed=-5) != text(seed=6)
    assert len({text() for _ in range(3)}) == 3
    whole = answer.choices[0].message.content
    assert text(extra_body={"top_k": 1}) == text(top_p=1e-6) == text(extra_body={"min_p": 1}) == whole
    stopped = client.chat.completions.create(**CHAT, stop=["\n\n\n", whole[4:7]])
    assert stopped.choices[0].message.content == whole.partition(whole[4:7])[0]
    assert stopped.choices[0].finish_reason == "stop"


def test_an_answer_may_fill_the_context(client, model):
    answer = client.chat.completions.create(**{key: CHAT[key] for key in CHAT if key != "max_tokens"})
    assert answer.usage.total_tokens == CONTEXT or answer.choices[0].finish_reason == "stop"


def test_models_health_and_metrics(client, running, answer):
    assert [card.id for card in client.models.list()] == [NAME]
    assert json.loads(running.get("/health")) == {"status": "ok"}
    plan = running.worker.engine.plan
    assert running.metric("qevict_kv_cache_bytes") == SLOTS * plan.kv_bytes
    assert running.metric("qevict_kv_cache_ratio") == pytest.approx(plan.ratio)
    assert running.metric("qevict_slots") == SLOTS and running.metric("qevict_slots_active") == 0
    before = running.metric('qevict_tokens_total{kind="generated"}')
    client.chat.completions.create(**CHAT)
    assert running.metric('qevict_tokens_total{kind="generated"}') == before + 20


@pytest.mark.parametrize(
    "path, body, status, message",
    [
        ("/chat/completions", b"", 400, "not JSON"),
        ("/chat/completions", b"{", 400, "not JSON"),
        ("/chat/completions", b"\xff\xfe\x00", 400, "not JSON"),
        ("/chat/completions", b"[" * 100_000, 400, "not JSON"),
        ("/chat/completions", b"[]", 400, "JSON object"),
        ("/completions", LONG | {"prompt": "\ud800"}, 400, "surrogate"),
        ("/completions", LONG | {"prompt": "word " * 200}, 400, f"over the context of {CONTEXT} tokens"),
        ("/completions", LONG | {"model": "other"}, 404, 'there is no model "other"'),
        ("/completions", LONG | {"\ud800": 1}, 400, r'unknown parameter "\ud800"'),
        ("/completions", LONG | {"x" * 10**6: 1}, 400, 'unknown parameter "xxx'),
        (
            "/chat/completions",
            CHAT | {"messages": [{"role": "user", "content": "", "\ud800": 1}]},
            400,
            r'"\ud800" is not',
        ),
        ("/completions", LONG | {"n": 2}, 400, "n=2 is not supported"),
        ("/nowhere", {}, 404, "Not Found"),
        ("/models", {}, 405, "Method Not Allowed"),
        ("/completions", b" " * (17 * 2**20), 413, "longer than"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_errors_have_the_form_of_the_api(running, path, body, status, message):
    found, document, _ = running.post(path, body)
    assert found == status and message in document["error"]["message"]
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["type"] == "invalid_request_error" and len(str(document)) < 500


def test_the_client_raises_what_the_status_says(client):
    with pytest.raises(openai.BadRequestError, match="over the context") as caught:
        client.completions.create(**LONG | {"prompt": "word " * 200})
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"


def test_a_full_queue_refuses_and_recovers(client, running, held):
    opened = [client.completions.create(**LONG, stream=True) for _ in range(SLOTS + QUEUE)]
    status, document, headers = running.post("/completions", LONG)
    assert status == 429 and document["error"]["code"] == "queue_full" and headers["retry-after"] == "1"
    with pytest.raises(openai.RateLimitError):
        client.completions.create(**LONG)
    held.set()
    texts = {"".join(chunk.choices[0].text for chunk in stream) for stream in opened}
    assert len(texts) == 1 and client.completions.create(**LONG).choices[0].text in texts


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_frees_the_slot_and_the_place_in_the_queue(running, held, stream):
    before = running.metric('qevict_requests_total{outcome="cancelled"}')
    drawn = running.metric('qevict_tokens_total{kind="generated"}')
    hangs = [Hanging(running, LONG | {"stream": stream}) for _ in range(SLOTS + 1)]
    running.wait_for_jobs(SLOTS + 1)
    for hanging in hangs:
        hanging.hang_up()
    running.wait_for("qevict_queue_length", 0)  # although the engine holds still
    held.set()
    running.wait_for('qevict_requests_total{outcome="cancelled"}', before + SLOTS + 1)
    running.wait_for("qevict_slots_active", 0)
    # nobody decoded to the end for nobody
    assert running.metric('qevict_tokens_total{kind="generated"}') - drawn < 50


class Hanging:
    """A client that sends a request and hangs up without reading."""

    def __init__(self, running, body):
        host, port = running.url.removeprefix("http://").removesuffix("/v1").split(":")
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n"
        self.socket = socket.create_connection((host, int(port)))
        self.socket.sendall(head.encode() + data)

    def hang_up(self):
        self.socket.close()


def test_stopping_ends_what_runs_and_what_waits_in_bounded_time(model, quick, monkeypatch):
    running, ends = Running(model, queue_limit=5), {}
    gate = hold(running, monkeypatch)
    going = next(gate)

    def read(number):
        with running.client() as client:
            try:
                stream = client.completions.create(**LONG, stream=True)
                ends[number] = [chunk.choices[0].finish_reason for chunk in stream][-1]
            except openai.APIError as error:
                ends[number] = error.message

    readers = [threading.Thread(target=read, args=(number,)) for number in range(SLOTS + 2)]
    for reader in readers:
        reader.start()
    running.wait_for_jobs(SLOTS + 2)
    threading.Timer(0.2, going.set).start()
    assert running.stop() < 10
    for reader in readers:
        reader.join(timeout=10)
    said = list(ends.values())
    assert len(said) == SLOTS + 2 and said.count("the server is shutting down") >= 2  # those that waited
    assert set(said) <= {"the server is shutting down", "length", "stop"}
    with pytest.raises(openai.APIConnectionError), running.client() as client:
        client.completions.create(**LONG)
