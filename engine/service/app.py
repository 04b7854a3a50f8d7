"""The routes of the service as a Starlette application. Light: imports no torch.

It knows HTTP and the two request formats; loading and computing are behind ``Runtime``.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine import __version__
from engine.errors import RequestError
from engine.info import EngineInfo
from engine.service.answer import Completion, EngineAnswer, log_without_message
from engine.service.fields import parse_object
from engine.service.guard import Guard
from engine.service.infill import InfillCompletion
from engine.service.metrics import RequestRecord, ServiceMetrics
from engine.service.openai import OpenAICompletion, error_body, model_list, request_error_body
from engine.service.runtime import Runtime

MAX_BODY_BYTES = 16 * 1024 * 1024

_KEEP_ALIVE_S = 75
_LOADING = "Loading model"  # llama.cpp's words, which its clients look for

_COMPLETIONS: dict[str, Callable[[dict[str, object], EngineInfo], Completion]] = {
    "/v1/completions": OpenAICompletion,
    "/infill": InfillCompletion,
}


def create_app(runtime: Runtime, token: str, checks_host: bool, request_exit: Callable[[], None]) -> Starlette:
    """The application. ``checks_host`` is for TCP; ``request_exit`` is called by ``POST /shutdown``."""
    endpoints = _Endpoints(runtime, request_exit)
    return Starlette(
        routes=[
            *(Route(path, endpoints.complete, methods=["POST"]) for path in _COMPLETIONS),
            Route("/health", endpoints.health),
            Route("/v1/models", endpoints.models),
            Route("/metrics", endpoints.metrics),
            Route("/shutdown", endpoints.shutdown, methods=["POST"]),
        ],
        middleware=[Middleware(_Discretion), Middleware(Guard, token=token, checks_host=checks_host)],
        exception_handlers={RequestError: _refused, HTTPException: _http_error},
    )


def server_config(app: Starlette) -> uvicorn.Config:
    """How to serve the application: nothing about requests is logged, and a stop takes a second at most."""
    return uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )


class _Discretion:
    """ASGI middleware: answers for a bug, which Starlette would raise further, to be logged with the user's text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:  # noqa: BLE001 - whatever it is
            log_without_message(error)
            if not has_begun:
                await _error("the service failed; see its log", 500)(scope, receive, send)


class _Endpoints:
    def __init__(self, runtime: Runtime, request_exit: Callable[[], None]) -> None:
        self._runtime = runtime
        self._request_exit = request_exit
        self._metrics = ServiceMetrics(runtime.num_running, runtime.num_waiting, runtime.kv_use)
        runtime.observe(self._metrics)

    async def complete(self, request: Request) -> Response:
        record = RequestRecord(self._metrics, request.url.path)
        try:
            with self._runtime.use():
                completion = await self._parse(request)
        except ClientDisconnect:
            record.close()
            return Response(status_code=400)  # nobody reads it
        except (RequestError, HTTPException):
            record.outcome = "refused"
            record.close()
            raise
        except Exception:
            record.outcome = "failed"
            record.close()
            raise
        return EngineAnswer(self._runtime, completion, record)

    async def _parse(self, request: Request) -> Completion:
        body = parse_object(await _read_body(request))
        runtime = self._runtime
        if runtime.error is not None:
            raise HTTPException(500, str(runtime.error))
        if runtime.loaded is None:
            raise HTTPException(503, _LOADING, {"Retry-After": "1"})
        if runtime.num_waiting() >= runtime.config.max_queued_requests:
            raise HTTPException(503, "too many requests are waiting; try again", {"Retry-After": "1"})
        return _COMPLETIONS[request.url.path](body, runtime.loaded.info)

    async def health(self, request: Request) -> Response:
        runtime, is_authenticated = self._runtime, request.state.is_authenticated
        details = self._details() if is_authenticated else {}
        if runtime.loaded is not None:
            return JSONResponse({"status": "ok"} | details)
        if runtime.error is None:
            return _error(_LOADING, 503, details)
        return _error(str(runtime.error) if is_authenticated else "the model could not be loaded", 500, details)

    def _details(self) -> dict[str, object]:
        runtime = self._runtime
        details: dict[str, object] = {
            "model": runtime.model,
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.time() - runtime.started_at_s, 3),
            "num_running": runtime.num_running(),
            "num_waiting": runtime.num_waiting(),
        }
        if runtime.loaded is not None:
            details |= asdict(runtime.loaded.info)
            details["family"] = details.pop("fim_family")
        if runtime.error is not None:
            details["error_kind"] = type(runtime.error).__name__
        return details

    async def models(self, request: Request) -> Response:
        return JSONResponse(model_list(self._runtime.model, self._runtime.started_at_s))

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def shutdown(self, request: Request) -> Response:
        self._request_exit()
        return JSONResponse({"status": "stopping"}, status_code=202)


async def _read_body(request: Request) -> bytes:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > MAX_BODY_BYTES:
            limit_mib = MAX_BODY_BYTES // 2**20
            raise HTTPException(413, f"the body is larger than {limit_mib} MiB; send less text")
    return bytes(content)


def _error(
    message: str,
    code: int,
    details: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    kind = {500: "server_error", 503: "unavailable_error"}.get(code, "invalid_request_error")
    return JSONResponse(error_body(message, kind, code) | dict(details or {}), status_code=code, headers=headers)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return JSONResponse(request_error_body(error), status_code=400)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.detail, error.status_code, headers=error.headers)
