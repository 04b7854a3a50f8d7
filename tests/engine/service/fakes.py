"""An engine without a model, and the real service around it, on the event loop of the test."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn

from engine.config import EngineConfig, ServiceConfig
from engine.errors import RequestError
from engine.info import EngineInfo
from engine.observer import Observer
from engine.request import CompletionRequest, Delta, Finished, FinishReason, Timing, Usage
from engine.service.app import create_app, server_config
from engine.service.client import ServiceClient
from engine.service.listener import listen_tcp, listen_unix, tcp_url
from engine.service.registration import UNIX_PREFIX
from engine.service.runtime import LoadedEngine, Runtime

TOKEN = "a-token-for-tests"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
INFO = EngineInfo(
    model="fake",
    architecture="none",
    fim_family="qwen",
    context_tokens=1024,
    dtype="float32",
    device="cpu",
    num_threads=1,
    num_parameters=0,
    memory_bytes=123,
    load_s=0.0,
)


@dataclass
class FakeEngine:
    """Says ``<0><1>…``, one token at a time, with the same interface as ``AsyncEngine``."""

    token_s: float = 0.0
    num_running: int = 0
    num_waiting: int = 0
    num_ended_early: int = 0
    requests: list[CompletionRequest] = field(default_factory=list)
    kv_use: tuple[int, int, int] = (3, 4, 10)
    observer: Observer | None = None
    failure: Exception | None = None
    fails_after: int = 0

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        if request.prefix == "too long":
            raise RequestError("the prompt has 9 tokens, more than 8")
        self.num_running += 1
        is_finished = False
        try:
            for index in range(request.sampling.max_tokens):
                if self.failure is not None and index >= self.fails_after:
                    raise self.failure
                await asyncio.sleep(self.token_s)
                yield Delta(f"<{index}>", (index,))
            is_finished = True
            finished = self.finished(request)
            if self.observer is not None:
                self.observer.on_pass(request.lane, 6, 0.01, (6, 6))
                self.observer.on_end(request.lane, finished)
            yield Delta("", finished=finished, usage=finished.usage)
        finally:
            self.num_running -= 1
            self.num_ended_early += not is_finished

    def observe(self, observer: Observer) -> None:
        self.observer = observer

    def finished(self, request: CompletionRequest) -> Finished:
        usage = Usage(prompt_tokens=10, cached_tokens=4, generated_tokens=request.sampling.max_tokens)
        timing = Timing(queue_ms=1.0, first_token_ms=4.0, total_ms=10.0)
        stop_string = request.sampling.stop[0] if request.sampling.stop else ""
        reason = FinishReason.STOP if stop_string else FinishReason.LENGTH
        return Finished(reason, usage, timing, stop_string)

    async def aclose(self) -> None:
        pass


@dataclass
class RunningService:
    """A service that answers on a socket."""

    address: str
    runtime: Runtime
    engine: FakeEngine
    exit_requested: asyncio.Event

    def http(self, token: str | None = TOKEN) -> httpx.AsyncClient:
        is_unix = self.address.startswith(UNIX_PREFIX)
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=self.address[len(UNIX_PREFIX) :] if is_unix else None),
            base_url="http://localhost" if is_unix else self.address,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            trust_env=False,
        )

    def client(self) -> ServiceClient:
        return ServiceClient(self.address, TOKEN)

    async def metric(self, line_start: str) -> float:
        async with self.http() as http:
            text = (await http.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith(line_start + " ")]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0


class Gate:
    """A loader that waits until it is opened, and then loads or fails."""

    def __init__(self, engine: FakeEngine, error: Exception | None = None) -> None:
        self.opened = threading.Event()
        self._engine = engine
        self._error = error

    def load(self, config: EngineConfig) -> LoadedEngine:
        self.opened.wait(timeout=10)
        if self._error is not None:
            raise self._error
        return LoadedEngine(INFO, self._engine)


@contextlib.asynccontextmanager
async def serve(
    tmp_path: Path,
    engine: FakeEngine | None = None,
    config: ServiceConfig | None = None,
    is_tcp: bool = False,
    load: Callable[[EngineConfig], LoadedEngine] | None = None,
) -> AsyncIterator[RunningService]:
    """Serve a fake engine; with ``load`` the caller drives ``runtime.load`` itself."""
    engine = engine or FakeEngine()
    runtime = Runtime(config or ServiceConfig(), load or (lambda _: LoadedEngine(INFO, engine)))
    exit_requested = asyncio.Event()
    app = create_app(runtime, TOKEN, checks_host=is_tcp, request_exit=exit_requested.set)
    server = uvicorn.Server(server_config(app))
    path = tmp_path / "s"
    listener = listen_tcp("127.0.0.1", 0) if is_tcp else listen_unix(path)
    address = tcp_url(listener) if is_tcp else f"{UNIX_PREFIX}{path}"
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        if load is None:
            await runtime.load()
        yield RunningService(address, runtime, engine, exit_requested)
    finally:
        server.should_exit = True
        await serving
        listener.close()


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for a condition; fail when it does not come true in time."""
    deadline_s = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, "the condition did not come true in time"
        await asyncio.sleep(0.005)
