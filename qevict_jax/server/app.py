# SPDX-FileCopyrightText: The qevict_jax authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP side: routes, errors and streams. Runs in an event loop and talks to the worker through queues."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from qevict_jax.server.documents import Documents
from qevict_jax.server.errors import ServerError
from qevict_jax.server.metrics import CONTENT_TYPE
from qevict_jax.server.prompts import Asked, Reader
from qevict_jax.server.worker import Event, Finished, Job, Piece, Worker

_MOST_BODY_BYTES = 16 * 2**20
_CLIENT_CLOSED_REQUEST = 499  # nginx's; nobody is there to read it


def create_app(worker: Worker, reader: Reader) -> Starlette:
    """The application.

    Args:
        worker: runs the requests.
        reader: understands their bodies.
    """

    async def chat(request: HTTPRequest) -> Response:
        return await _answer(request, worker, reader, chat=True)

    async def completion(request: HTTPRequest) -> Response:
        return await _answer(request, worker, reader, chat=False)

    async def models(request: HTTPRequest) -> Response:
        card = {"id": reader.name, "object": "model", "created": 0, "owned_by": "qevict_jax"}
        return JSONResponse({"object": "list", "data": [card | {"max_model_len": reader.max_context}]})

    async def health(request: HTTPRequest) -> Response:
        return JSONResponse({"status": "ok"} if worker.alive else {"status": "down"}, 200 if worker.alive else 503)

    async def metrics(request: HTTPRequest) -> Response:
        return Response(worker.metrics.text(), media_type=CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completion, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        exception_handlers={
            ServerError: _refusal,
            HTTPException: _http_error,
            ClientDisconnect: _nobody,
            Exception: _bug,
        },
    )


async def _answer(request: HTTPRequest, worker: Worker, reader: Reader, chat: bool) -> Response:
    body = await _body(request)
    # tokenizing a long prompt takes a while
    asked = await run_in_threadpool(reader.chat if chat else reader.completion, body)
    documents = Documents(chat, reader.name, len(asked.request.ids), asked.include_usage)
    job, queue = _queued(asked)
    worker.submit(job)
    if asked.stream:
        return _Stream(worker, job, queue, documents)
    text = ""
    async with aclosing(_events(worker, job, queue, request.receive)) as events:
        async for event in events:
            if isinstance(event, ServerError):
                raise event
            if isinstance(event, Finished):
                return JSONResponse(documents.whole(text, event.reason, event.tokens))
            text += event.text
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _body(request: HTTPRequest) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BODY_BYTES:
            raise ServerError(413, f"the body is longer than {_MOST_BODY_BYTES} bytes")
    return bytes(body)


def _queued(asked: Asked) -> tuple[Job, "asyncio.Queue[Event]"]:
    """A job whose events come out of a queue of this event loop."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Event]()

    def deliver(event: Event) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, event)

    return Job(asked.request, asked.stop, deliver), queue


async def _events(
    worker: Worker, job: Job, queue: "asyncio.Queue[Event]", receive: Callable[..., Any]
) -> AsyncGenerator[Event]:
    """Events of a job up to the last one or until the client hangs up; whichever way it ends, the job is given up."""
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        while True:
            following = asyncio.ensure_future(queue.get())
            try:
                await asyncio.wait({following, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ready = following.done()
                following.cancel()
            if not ready:
                return
            event = following.result()
            yield event
            if not isinstance(event, Piece):
                return
    finally:
        gone.cancel()
        worker.cancel(job)


async def _disconnected(receive: Callable[..., Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Stream(Response):
    """Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), one JSON document each."""

    def __init__(self, worker: Worker, job: Job, queue: "asyncio.Queue[Event]", documents: Documents):
        self._worker, self._job, self._queue, self._documents = worker, job, queue, documents
        self.status_code, self.background = 200, None
        self.init_headers({"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def put(*documents: dict[str, Any]) -> None:
            body = "".join(f"data: {json.dumps(document)}\n\n" for document in documents)
            await send({"type": "http.response.body", "body": body.encode(), "more_body": True})

        async with aclosing(_events(self._worker, self._job, self._queue, receive)) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await put(*self._documents.first())
            async for event in events:
                if isinstance(event, Piece):
                    await put(self._documents.piece(event.text))
                elif isinstance(event, Finished):
                    await put(*self._documents.last(event.reason, event.tokens))
                else:
                    await put(event.body)
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _refusal(request: HTTPRequest, error: Exception) -> Response:
    assert isinstance(error, ServerError)
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.body, error.status, headers)


async def _http_error(request: HTTPRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(ServerError(error.status_code, message).body, error.status_code, error.headers)


async def _nobody(request: HTTPRequest, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _bug(request: HTTPRequest, error: Exception) -> Response:
    return JSONResponse(ServerError(500, "the server has failed; its log says more").body, 500)
