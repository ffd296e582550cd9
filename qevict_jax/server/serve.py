# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The server process: engine, worker and HTTP together, from start to a clean end."""

import math
import socket
from collections.abc import Callable

import uvicorn
from starlette.concurrency import run_in_threadpool

from qevict_jax.config import CacheConfig
from qevict_jax.engine import Engine
from qevict_jax.models import LanguageModel
from qevict_jax.plan import CachePlan
from qevict_jax.server.app import create_app
from qevict_jax.server.prompts import Reader
from qevict_jax.server.worker import Worker
from qevict_jax.types import QEvictError

_MARGIN = 5.0  # seconds for responses to leave after their jobs have ended, and for the engine to return


class Server(uvicorn.Server):
    """A `uvicorn.Server` that ends its worker's jobs before it waits for connections to close.

    On SIGINT or SIGTERM no new request is taken, waiting ones are told so, and running ones have ``grace`` seconds.
    """

    def __init__(
        self, worker: Worker, reader: Reader, *, host: str, port: int, grace: float, announce: Callable[[str], None]
    ):
        """A server that does not run yet.

        Args:
            worker: a started one.
            reader: understands request bodies.
            host: address to listen on.
            port: port to listen on; 0 takes a free one.
            grace: seconds that running requests have after a signal.
            announce: called with the base URL for clients once it listens.
        """
        wait = int(grace + _MARGIN)
        app = create_app(worker, reader)
        super().__init__(
            uvicorn.Config(app, host, port, lifespan="off", timeout_graceful_shutdown=wait, log_level="warning")
        )
        self._worker, self._grace, self._announce = worker, grace, announce

    @property
    def plan(self) -> CachePlan:
        """Capacities and bytes of one request's cache."""
        return self._worker.engine.plan

    @property
    def failed(self) -> bool:
        """Whether the engine has failed, which ends the server."""
        return self._worker.failed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, and says where."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._announce(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")

    async def on_tick(self, counter: int) -> bool:
        """Whether to end, as it also must when the engine has failed."""
        return await super().on_tick(counter) or self.failed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends jobs, then connections, then the worker's thread; in bounded time."""
        self._worker.stop(self._grace)
        await super().shutdown(sockets)
        await run_in_threadpool(self._worker.join, _MARGIN)


def make_server(
    model: LanguageModel,
    name: str,
    cache: CacheConfig | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    slots: int = 8,
    max_context: int = 4096,
    max_new_tokens: int | None = None,
    queue_limit: int = 64,
    grace: float = 10.0,
    warm_up: bool = True,
    announce: Callable[[str], None] = print,
) -> Server:
    """Engine, worker and server around a model; the worker has started.

    Args:
        model: from `load`.
        name: under which clients ask for it.
        cache: how the KV cache is held, default `CacheConfig.tuned`.
        host: address to listen on.
        port: port to listen on.
        slots: requests that decode at once.
        max_context: tokens of prompt and answer of a request.
        max_new_tokens: the most tokens of an answer, default what the context leaves.
        queue_limit: requests that may wait for a slot.
        grace: seconds that running requests have after a signal to end.
        warm_up: compile the programs of all prompt sizes now, not each when it is first needed.
        announce: called with the base URL for clients once the server listens.

    Raises:
        QEvictError: a model without a tokenizer, or a size that does not work.
    """
    if model.tokenizer is None:
        raise QEvictError("this model has no tokenizer, so it cannot be served")
    if queue_limit < 1:
        raise QEvictError(f"queue_limit={queue_limit} must be at least 1")
    if max_new_tokens is not None and not 2 <= max_new_tokens < max_context:
        raise QEvictError(f"max_new_tokens={max_new_tokens} must lie in 2 .. {max_context - 1}, below max_context")
    if not 0 <= grace < math.inf:
        raise QEvictError(f"grace={grace} must be 0 or more seconds")
    if max_context < 3:
        raise QEvictError(f"max_context={max_context} must be at least 3")
    most = max_new_tokens or max_context - 1
    engine = Engine(
        model, cache, slots=slots, max_context=max_context, max_new_tokens=most, prompt_sizes=prompt_sizes(max_context)
    )
    worker = Worker(engine, model.tokenizer, queue_limit=queue_limit)
    worker.start(warm_up=warm_up)
    reader = Reader(model, name, max_context, most)
    return Server(worker, reader, host=host, port=port, grace=grace, announce=announce)


def prompt_sizes(max_context: int) -> list[int]:
    """Two sizes per octave up to the context, so that few programs serve all prompts: 64, 96, 128, 192, ..."""
    sizes, size = [], 64
    while size < max_context:
        sizes += [size, size * 3 // 2]
        size *= 2
    return [*(size for size in sizes if size < max_context), max_context]
