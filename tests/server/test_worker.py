# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The worker without HTTP: jobs in, events out, and what happens when the engine fails."""

import queue

import pytest

from qevict_jax.engine import Engine, Request
from qevict_jax.sampling import Sampling
from qevict_jax.server.errors import ServerError
from qevict_jax.server.serve import prompt_sizes
from qevict_jax.server.worker import Finished, Job, Piece, Worker
from tests.server.conftest import CACHE, CONTEXT, SLOTS, wait_until


@pytest.fixture
def worker(model, quick):
    engine = Engine(
        model, CACHE, slots=SLOTS, max_context=CONTEXT, max_new_tokens=CONTEXT - 1, prompt_sizes=prompt_sizes(CONTEXT)
    )
    worker = Worker(engine, model.tokenizer, queue_limit=3)
    worker.start(warm_up=False)
    yield worker
    worker.stop(0.0)
    assert worker.join(30.0)


def job(tokens=20, prompt=(5, 6, 7)):
    events = queue.Queue()
    return Job(Request(prompt, tokens, Sampling()), (), events.put), events


def finish(events):
    """All events up to the last."""
    seen = [events.get(timeout=30)]
    while isinstance(seen[-1], Piece):
        seen.append(events.get(timeout=30))
    return seen


def test_prompts_of_all_sizes_are_compiled_before_the_first_request(worker):
    assert prompt_sizes(300) == [64, 96, 128, 192, 256, 300] and prompt_sizes(64) == [64] and prompt_sizes(5) == [5]
    engine = worker.engine
    engine.prepare_reading()
    before = engine.compiled.seconds
    for length in (3, 70, 126):
        work, events = job(tokens=2, prompt=(5,) * length)
        worker.submit(work)
        assert finish(events)[-1] == Finished("length", 2)
    work, events = job(tokens=100)
    worker.submit(work)
    assert isinstance(events.get(timeout=30), Piece)
    worker.cancel(work)
    wait_until(lambda: len(engine.free) == SLOTS)
    assert engine.compiled.seconds - before < 0.1


def test_a_job_gives_pieces_and_an_end(worker):
    work, events = job()
    worker.submit(work)
    *pieces, end = finish(events)
    assert end == Finished("length", 20) and len(pieces) > 2
    assert worker.engine.free == list(range(SLOTS))


def test_cancelling_what_has_ended_does_nothing(worker):
    work, events = job()
    worker.submit(work)
    finish(events)
    worker.cancel(work)
    other, events = job()
    worker.submit(other)
    assert finish(events)[-1] == Finished("length", 20)


def test_a_failing_engine_tells_everyone_and_takes_no_more(worker, monkeypatch):
    def fail():
        raise RuntimeError("out of memory")

    monkeypatch.setattr(worker.engine, "decode_block", fail)
    jobs = [job() for _ in range(SLOTS + 1)]
    told = []
    for work, _ in jobs:
        try:
            worker.submit(work)
        except ServerError as error:
            told.append(error)
    told += [finish(events)[-1] for work, events in jobs[: len(jobs) - len(told)]]
    assert [error.status for error in told] == [503] * len(jobs)
    assert worker.join(30.0) and not worker.alive and worker.failed
    with pytest.raises(ServerError, match="the engine has failed"):
        worker.submit(job()[0])


def test_a_prompt_that_cannot_be_read_fails_alone(worker, monkeypatch):
    read = worker.engine.prefill

    def fail(requests):
        if len(requests[0].ids) > 3:
            raise RuntimeError("out of memory")
        return read(requests)

    monkeypatch.setattr(worker.engine, "prefill", fail)
    other, others_events = job(tokens=60)
    worker.submit(other)
    work, events = job(prompt=(5,) * 4)
    worker.submit(work)
    (error,) = finish(events)
    assert (error.status, error.message) == (500, "the prompt could not be read; the server's log says more")
    assert finish(others_events)[-1] == Finished("length", 60)
    assert worker.alive and not worker.failed and worker.engine.free == list(range(SLOTS))


def test_stopping_refuses_waits_for_nobody_longer_than_asked(worker):
    work, events = job(tokens=100)
    worker.submit(work)
    worker.stop(grace=0.0)
    assert worker.join(30.0)
    last = finish(events)[-1]
    assert isinstance(last, ServerError | Finished)
    with pytest.raises(ServerError, match="shutting down"):
        worker.submit(job()[0])
