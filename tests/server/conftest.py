# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""A server of a tiny model on loopback, and a way to hold its engine still."""

import copy
import dataclasses
import json
import queue
import threading
import time
import urllib.error
import urllib.request
from functools import partialmethod

import jax
import openai
import pytest

from qevict_jax import CacheConfig
from qevict_jax.server import make_server
from tests.converted import load_converted
from tests.quick_compile import QUICK

NAME, SLOTS, CONTEXT, QUEUE = "tiny", 2, 128, 3
CACHE = CacheConfig(budget=0.5, kv_dtype="float32", recent=8)


class Running:
    """A server in a thread of this process, and what a test asks of it."""

    def __init__(self, model, **options):
        urls = queue.Queue()
        options = {
            "slots": SLOTS,
            "max_context": CONTEXT,
            "queue_limit": QUEUE,
            "grace": 0.3,
            "warm_up": False,
        } | options
        self.server = make_server(model, NAME, CACHE, port=0, announce=urls.put, **options)
        self.worker = self.server._worker
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        self.url = urls.get(timeout=30)

    def stop(self):
        """Seconds that stopping took."""
        began = time.monotonic()
        self.server.should_exit = True
        self.thread.join(timeout=30)
        assert not self.thread.is_alive() and not self.worker._thread.is_alive()
        return time.monotonic() - began

    def client(self):
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=60)

    def post(self, path, body):
        """Status, document and headers of a request with any body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response), response.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error), error.headers

    def get(self, path):
        with urllib.request.urlopen(self.url.removesuffix("/v1") + path, timeout=60) as response:
            return response.read().decode()

    def metric(self, name):
        """The value of a sample of /metrics."""
        (value,) = (line.split()[-1] for line in self.get("/metrics").splitlines() if line.startswith(name + " "))
        return float(value)

    def wait_for(self, name, value):
        """Until a metric has a value."""
        wait_until(lambda: self.metric(name) == value)

    def wait_for_jobs(self, count):
        """Until so many requests decode or wait; those that come while the engine is held still wait."""
        wait_until(lambda: self.metric("qevict_slots_active") + self.metric("qevict_queue_length") == count)


def wait_until(happened):
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A model with an EOS that it does not draw here, so that answers have a known length."""
    model = load_converted(tmp_path_factory.mktemp("server"), "llama")
    tokenizer = copy.copy(model.tokenizer)
    tokenizer.eos_ids = frozenset({299})
    return dataclasses.replace(model, tokenizer=tokenizer)


@pytest.fixture(scope="session")
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.stages.Lowered, "compile", partialmethod(jax.stages.Lowered.compile, compiler_options=QUICK))
        yield


@pytest.fixture(scope="session")
def running(model, quick):
    running = Running(model)
    yield running
    running.stop()


@pytest.fixture
def held(running, monkeypatch):
    """The engine does not decode until the event is set; nothing is left behind after the test."""
    yield from hold(running, monkeypatch)


def hold(running, monkeypatch):
    going, engine = threading.Event(), running.worker.engine
    decode = engine.decode_block

    def decode_when_let():
        going.wait(timeout=30)
        return decode()

    monkeypatch.setattr(engine, "decode_block", decode_when_let)
    yield going
    going.set()
    running.wait_for("qevict_slots_active", 0)
    running.wait_for("qevict_queue_length", 0)
