"""Runs one completion and writes its answer, whole or as server-sent events. Light; knows no API's fields.

A client that goes away is noticed at any time, also before the first byte and for answers in one piece, and
cancels the work at once.
"""

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from engine.errors import MidlineError, RequestError
from engine.request import CompletionRequest, Delta
from engine.service.metrics import RequestRecord
from engine.service.openai import error_body, request_error_body
from engine.service.runtime import Runtime

logger = logging.getLogger(__name__)


class Completion(Protocol):
    """A parsed request that knows the shape of its answer."""

    request: CompletionRequest
    is_streaming: bool

    def whole(self, deltas: Sequence[Delta]) -> dict[str, object]:
        """The answer in one piece."""

    def events(self, delta: Delta) -> Iterator[str]:
        """Payloads of server-sent events for one delta."""


class EngineAnswer(Response):
    """The response to one completion request; it ends the record."""

    def __init__(self, runtime: Runtime, completion: Completion, record: RequestRecord) -> None:
        """The runtime must be loaded."""
        super().__init__()
        self._runtime = runtime
        self._completion = completion
        self._record = record
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute and send; returns early when the client goes away."""
        try:
            with self._runtime.use():
                await _unless_disconnected(receive, self._answer(scope, receive, send))
        finally:
            self._record.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._runtime.loaded is not None
        engine = self._runtime.loaded.engine
        try:
            async with (
                aclosing(engine.stream(self._completion.request)) as stream,
                aclosing(self._record.watch(stream)) as deltas,
            ):
                if self._completion.is_streaming:
                    await self._send_events(deltas, send)
                else:
                    body = self._completion.whole([delta async for delta in deltas])
                    await JSONResponse(body)(scope, receive, send)
        except RequestError as error:
            self._record.outcome = "refused"
            await self._send_error(JSONResponse(request_error_body(error), 400), scope, receive, send)
        except Exception as error:  # noqa: BLE001 - whatever breaks in the engine, the client gets an answer
            self._record.outcome = "failed"
            log_without_message(error)
            message = str(error) if isinstance(error, MidlineError) else "the engine failed; see its log"
            response = JSONResponse(error_body(message, "server_error", 500), 500)
            await self._send_error(response, scope, receive, send)

    async def _send_events(self, deltas: AsyncGenerator[Delta, None], send: Send) -> None:
        async for delta in deltas:
            if not self._has_begun:  # not before: the first step may still refuse the request
                self._has_begun = True
                await send(
                    {
                        "type": "http.response.start",
                        "status": 200,
                        "headers": [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")],
                    }
                )
            events = "".join(f"data: {payload}\n\n" for payload in self._completion.events(delta))
            await send({"type": "http.response.body", "body": events.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _send_error(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        """As the response, or as the last event when the stream has begun."""
        if self._has_begun:
            await send({"type": "http.response.body", "body": b"data: " + bytes(response.body) + b"\n\n"})
        else:
            await response(scope, receive, send)


async def _unless_disconnected(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Run the work; cancel it, and wait until it has ended, when the client goes away."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnection(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watching.cancel()
        working.cancel()  # does nothing to work that is done
        await asyncio.wait({working, watching})
    if not working.cancelled():
        working.result()


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def log_without_message(error: Exception) -> None:
    """Where it broke, but not the message, which may quote the user's text."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    logger.error("a request failed with %s\n%s", type(error).__name__, frames)
