"""A small LSP client for tests: raw JSON-RPC over any byte stream, so that malformed messages can be sent too."""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsp_server.backends.base import Backend
from lsp_server.config import CompletionConfig, MidlineConfig
from lsp_server.server import MidlineServer
from lsp_server.transport import serve

TIMEOUT_S = 20.0
NO_DEBOUNCE = MidlineConfig(completion=CompletionConfig(debounce_ms=0, idle_work="off"))

INLINE_CLIENT: dict[str, Any] = {"textDocument": {"inlineCompletion": {"dynamicRegistration": False}}}


class LspSession:
    """One connection as a client. Requests are awaited as futures; notifications are kept in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: Any) -> None:
        self.notifications: list[dict[str, Any]] = []
        self.replies: list[dict[str, Any]] = []
        """Every reply in order of arrival, to prove that each request got one."""
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._pump = asyncio.create_task(self._read())

    def send_bytes(self, body: bytes) -> None:
        self._writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def send(self, message: Any) -> None:
        self.send_bytes(json.dumps(message).encode())

    def notify(self, method: str, params: Any = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def start_request(self, method: str, params: Any = None, **fields: Any) -> "asyncio.Future[dict[str, Any]]":
        """Send a request; the future brings the whole reply."""
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params, **fields}
        future = self._waiting[message["id"]] = asyncio.get_running_loop().create_future()
        future.msg_id = message["id"]  # type: ignore[attr-defined]
        self.send(message)
        return future

    def expect(self, msg_id: Any) -> "asyncio.Future[dict[str, Any]]":
        """The reply to a message that is sent by hand."""
        return self._waiting.setdefault(msg_id, asyncio.get_running_loop().create_future())

    async def request(self, method: str, params: Any = None, **fields: Any) -> dict[str, Any]:
        return await asyncio.wait_for(self.start_request(method, params, **fields), TIMEOUT_S)

    async def result(self, method: str, params: Any = None) -> Any:
        reply = await self.request(method, params)
        assert "error" not in reply, reply
        return reply["result"]

    def cancel(self, future: "asyncio.Future[dict[str, Any]]") -> None:
        self.notify("$/cancelRequest", {"id": future.msg_id})  # type: ignore[attr-defined]

    async def initialize(
        self, capabilities: Mapping[str, Any] = INLINE_CLIENT, name: str = "test", **params: Any
    ) -> dict[str, Any]:
        result: dict[str, Any] = await self.result(
            "initialize",
            {"processId": None, "rootUri": None, "clientInfo": {"name": name}, "capabilities": capabilities, **params},
        )
        self.notify("initialized", {})
        return result

    def open(self, text: str, uri: str = "file:///a.py", language: str = "python", version: int = 1) -> None:
        item = {"uri": uri, "languageId": language, "version": version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})

    def change(self, text: str, version: int, uri: str = "file:///a.py", at: tuple[int, int] | None = None) -> None:
        """Insert at a position, or replace the whole document."""
        event: dict[str, Any] = {"text": text}
        if at is not None:
            position = {"line": at[0], "character": at[1]}
            event["range"] = {"start": position, "end": position}
        self.notify(
            "textDocument/didChange",
            {"textDocument": {"uri": uri, "version": version}, "contentChanges": [event]},
        )

    def inline(
        self, line: int, character: int, uri: str = "file:///a.py", trigger_kind: Any = 1
    ) -> "asyncio.Future[dict[str, Any]]":
        return self.start_request("textDocument/inlineCompletion", inline_params(line, character, uri, trigger_kind))

    async def wait_for_notification(self, method: str, timeout_s: float = TIMEOUT_S, **wanted: Any) -> Any:
        """Parameters of the first notification of a method, also of the past, that has these values."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for message in self.notifications:
                params = message.get("params") or {}
                if message["method"] == method and wanted.items() <= params.items():
                    return params
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {method} with {wanted} within {timeout_s} s; got {self.notifications}")

    async def shut_down(self) -> None:
        await self.result("shutdown")
        self.notify("exit")

    async def aclose(self) -> None:
        self._pump.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pump

    async def _read(self) -> None:
        while True:
            num_bytes = 0
            while (line := await self._reader.readline()).strip():
                assert line.lower().startswith(b"content-"), f"this is not LSP: {line!r}"
                if line.lower().startswith(b"content-length:"):
                    num_bytes = int(line.split(b":")[1])
            if not line:
                return
            self._dispatch(json.loads(await self._reader.readexactly(num_bytes)))

    def _dispatch(self, message: dict[str, Any]) -> None:
        if "method" in message:
            self.notifications.append(message)
            return
        self.replies.append(message)
        future = self._waiting.pop(message.get("id"), None)
        if future is not None and not future.done():
            future.set_result(message)


def inline_params(line: int, character: int, uri: str = "file:///a.py", trigger_kind: Any = 1) -> dict[str, Any]:
    return {
        "textDocument": {"uri": uri},
        "position": {"line": line, "character": character},
        "context": {"triggerKind": trigger_kind},
    }


async def until(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
    """Wait for something to become true."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        await asyncio.sleep(0.005)


class ServerProcess:
    """``midline serve`` as a process, with a client on its streams."""

    def __init__(self, process: asyncio.subprocess.Process, session: LspSession) -> None:
        self.process = process
        self.session = session

    async def wait(self) -> int:
        return await asyncio.wait_for(self.process.wait(), TIMEOUT_S)

    async def stderr(self) -> str:
        """All of it; call when the process has ended."""
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()


@contextlib.asynccontextmanager
async def running_server(
    folder: Path, *arguments: str, command: tuple[str, ...] = ("-m", "lsp_server"), **environment: str
) -> AsyncIterator[ServerProcess]:
    """Start ``midline serve`` with all of its folders inside ``folder``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "serve",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **private_folders(folder), **environment},
    )
    session = LspSession(process.stdout, process.stdin)  # type: ignore[arg-type]
    try:
        yield ServerProcess(process, session)
    finally:
        await session.aclose()
        if process.returncode is None:
            process.kill()
        await process.communicate()


def private_folders(folder: Path) -> dict[str, str]:
    """The environment that keeps Midline away from the user's own folders."""
    return {
        "MIDLINE_CACHE_DIR": str(folder / "cache"),
        "MIDLINE_STATE_DIR": str(folder / "state"),
        "MIDLINE_CONFIG": str(folder / "config.toml"),
    }


class MemoryWriter:
    """The writing end of an in-memory stream."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def write(self, data: bytes) -> None:
        self._reader.feed_data(data)

    def close(self) -> None:
        self._reader.feed_eof()


@dataclass
class InProcessServer:
    """A server with a given backend in this process, for tests that control its timing."""

    server: MidlineServer
    session: LspSession
    ended: "asyncio.Task[int]"
    """The exit code."""
    to_server: MemoryWriter


@contextlib.asynccontextmanager
async def in_process_server(backend: Backend, config: MidlineConfig = NO_DEBOUNCE) -> AsyncIterator[InProcessServer]:
    """A server over in-memory streams whose backend is the test's."""
    server = MidlineServer(config, lambda *_: backend)
    to_server, to_client = asyncio.StreamReader(), asyncio.StreamReader()
    ended = asyncio.create_task(serve(server.protocol, to_server, MemoryWriter(to_client)))
    session = LspSession(to_client, MemoryWriter(to_server))
    try:
        yield InProcessServer(server, session, ended, MemoryWriter(to_server))
    finally:
        to_server.feed_eof()
        await asyncio.wait_for(ended, TIMEOUT_S)
        await server.session.aclose()
        await session.aclose()
