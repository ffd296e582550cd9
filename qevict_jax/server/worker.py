# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The one thread that owns the engine: takes jobs from a bounded queue and hands their text on as it comes."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from qevict_jax.engine import Drawn, Engine, Request
from qevict_jax.models.tokenizer import Tokenizer
from qevict_jax.reply import Reply
from qevict_jax.sampling import Sampling
from qevict_jax.server.errors import ServerError
from qevict_jax.server.metrics import Metrics

log = logging.getLogger("qevict_jax.server")


@dataclass(frozen=True)
class Piece:
    """Text that has come."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The end of an answer: why, and how many tokens were drawn."""

    reason: str
    tokens: int


Event = Piece | Finished | ServerError


@dataclass(eq=False)
class Job:
    """A request on its way.

    Attributes:
        request: what to decode.
        stop: texts that end the answer.
        deliver: called from the worker's thread with every `Event`; the last one is no `Piece`.
        cancelled: nobody listens any more.
    """

    request: Request
    stop: tuple[str, ...]
    deliver: Callable[[Event], None]
    cancelled: bool = False


class Worker:
    """Runs jobs on an engine, as many at once as it has slots.

    Attributes:
        engine: nobody else may call it.
        metrics: what happened so far.
        failed: whether the engine has failed; no job is taken then.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, *, queue_limit: int):
        """A worker that does not run yet.

        Args:
            engine: without rows.
            tokenizer: the model's.
            queue_limit: jobs that may wait while all slots are taken.
        """
        self.engine, self._tokenizer, self._queue_limit = engine, tokenizer, queue_limit
        self._waiting: deque[Job] = deque()
        self._running: dict[int, tuple[Job, Reply]] = {}
        self._changed = threading.Condition()
        self._deadline: float | None = None  # when jobs that still run are ended; set when stopping
        self.failed = False
        self._thread = threading.Thread(target=self._run, name="qevict-engine", daemon=True)
        self.metrics = Metrics(
            slots=engine.slots,
            active=lambda: len(self._running),
            waiting=lambda: len(self._waiting),
            kv_bytes=lambda: engine.kv_bytes * engine.slots,
            full_kv_bytes=engine.plan.full_kv_bytes * engine.slots,
        )

    def start(self, *, warm_up: bool = True) -> None:
        """Compiles what every request needs and begins to work.

        Args:
            warm_up: also compile reading prompts of every size.
        """
        slot = self.engine.free[0]
        self.engine.insert(self.engine.prefill([Request((0,), 2, Sampling())]), [slot])
        self.engine.decode_block()
        self.engine.release(slot)
        self.engine.prepare_release()
        if warm_up:
            self.engine.prepare_reading()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether jobs are taken."""
        return self._thread.is_alive() and self._deadline is None

    def submit(self, job: Job) -> None:
        """Queues a job.

        Raises:
            ServerError: 429 if the queue is full, 503 if the worker is stopping or has failed.
        """
        with self._changed:
            if not self.alive:
                raise self._unavailable()
            free = self.engine.slots - len(self._running)  # filled at the next chance
            if len(self._waiting) >= self._queue_limit + free:
                self.metrics.refused()
                raise ServerError(
                    429, f"the queue of {self._queue_limit} requests is full; try again later", code="queue_full"
                )
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Gives up a job; no effect on one that has ended."""
        with self._changed:
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
                self.metrics.ended("cancelled")

    def stop(self, grace: float) -> None:
        """Takes no more jobs and ends those that wait; those that run have ``grace`` seconds."""
        with self._changed:
            self._deadline = time.monotonic() + grace
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify()
        for job in waiting:
            self._fail(job, self._unavailable())

    def join(self, timeout: float) -> bool:
        """Waits for the thread to end after `stop`; whether it did."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._wait():
                self._drop_cancelled()
                self._admit()
                if self._running:
                    self._hand_out(self.engine.decode_block())
        except Exception:
            log.exception("the engine failed; no more requests are taken")
            self.failed = True
        finally:
            with self._changed:
                self._deadline = self._deadline or time.monotonic()
                left = [*self._waiting, *(job for job, _ in self._running.values())]
                self._waiting.clear()
                self._running.clear()
            for job in left:
                self._fail(job, self._unavailable())

    def _wait(self) -> bool:
        """Until there is something to do; False when there never will be."""
        with self._changed:
            while not self._waiting and not self._running:
                if self._deadline is not None:
                    return False
                self._changed.wait()
            return self._deadline is None or time.monotonic() < self._deadline

    def _drop_cancelled(self) -> None:
        for slot, (job, _) in list(self._running.items()):
            if job.cancelled:
                self._end(slot, "cancelled")

    def _admit(self) -> None:
        """Fills free slots from the queue."""
        for slot in self.engine.free:
            with self._changed:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
                # in its place before it is read, so that it is never in neither list
                self._running[slot] = (job, Reply(self._tokenizer, self.engine.eos, job.stop))
            self.metrics.read(len(job.request.ids))
            try:
                rows = self.engine.prefill([job.request])
            except Exception:  # it has taken nothing of the batch, which goes on
                log.exception("a prompt of %d tokens could not be read", len(job.request.ids))
                with self._changed:
                    del self._running[slot]
                self._fail(job, ServerError(500, "the prompt could not be read; the server's log says more"))
                continue
            self.engine.insert(rows, [slot])
            self._hand_out(self.engine.drawn())

    def _hand_out(self, drawn: dict[int, Drawn]) -> None:
        for slot, news in drawn.items():
            job, reply = self._running[slot]
            before = len(reply.tokens)
            text = reply.push(news)
            self.metrics.drew(len(reply.tokens) - before)
            if text:
                job.deliver(Piece(text))
            if reply.finish_reason is not None:
                self._end(slot, reply.finish_reason)
                job.deliver(Finished(reply.finish_reason, len(reply.tokens)))

    def _end(self, slot: int, outcome: str) -> None:
        self.engine.release(slot)
        with self._changed:
            del self._running[slot]
        self.metrics.ended(outcome)

    def _fail(self, job: Job, error: ServerError) -> None:
        self.metrics.ended("failed")
        job.deliver(error)

    def _unavailable(self) -> ServerError:
        why = "the engine has failed; the server's log says more" if self.failed else "the server is shutting down"
        return ServerError(503, why, code="unavailable")
