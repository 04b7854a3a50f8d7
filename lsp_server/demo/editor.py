"""An editor without a window: one document, one cursor, and the real language server behind it."""

import asyncio
import contextlib
import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types
from pygls.lsp.client import LanguageClient

from engine import __version__
from engine.errors import ServiceError

_SHUTDOWN_TIMEOUT_S = 5.0
_WATCH_S = 0.2


@dataclass(frozen=True)
class Ghost:
    """A suggestion as an editor would show it."""

    text: str
    latency_ms: float
    """From the key to the answer."""


class DemoEditor:
    """Types into a document and asks after every key, as editors do; older requests are left to the server."""

    def __init__(self, file_name: str, lines: list[str]) -> None:
        self.lines = list(lines)
        self._uri = (Path.cwd() / file_name).as_uri()
        self._version = 0
        # of a server that dies, one logs tracebacks of answers that come too late, the other writes to a closed pipe
        for name in ("pygls", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._client = LanguageClient("midline-demo", __version__)
        self._state = ""
        self._message = ""
        self._has_news = asyncio.Event()
        self._client.feature("midline/status")(lambda params: self._on_status(params))  # it marks the function
        self._client.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: None)  # the status says it too

    async def start(self, model: str | None) -> None:
        """Start ``midline serve`` and open the document."""
        model_args = ["--model", model] if model else []
        # in a session of its own: Ctrl-C is for us, and the server ends when we close its input
        command = (sys.executable, "-m", "lsp_server", "serve", "--stdio", *model_args)
        await self._client.start_io(*command, start_new_session=True)
        capabilities = types.ClientCapabilities(
            text_document=types.TextDocumentClientCapabilities(
                inline_completion=types.InlineCompletionClientCapabilities()
            )
        )
        await self._client.initialize_async(
            types.InitializeParams(
                capabilities=capabilities,
                client_info=types.ClientInfo("midline-demo", __version__),
                initialization_options={"midline": {"status": True}},
            )
        )
        self._client.initialized(types.InitializedParams())
        item = types.TextDocumentItem(self._uri, "python", self._version, "\n".join(self.lines))
        self._client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until the model is loaded. Raises ``ServiceError`` when it cannot be, or not in time."""
        deadline_s = time.monotonic() + timeout_s
        while self._state != "ready":
            if self._state in ("failed", "model_missing"):
                raise ServiceError(self._message)
            self._has_news.clear()
            try:
                await asyncio.wait_for(self._has_news.wait(), deadline_s - time.monotonic())
            except asyncio.TimeoutError:
                raise ServiceError(f"the model was not loaded within {timeout_s:.0f} s; run: midline doctor") from None

    def insert(self, line: int, column: int, text: str) -> tuple[int, int]:
        """Insert at a position; returns the position after it."""
        self._change(types.Position(line, column), types.Position(line, column), text)
        before, after = self.lines[line][:column], self.lines[line][column:]
        new_lines = (before + text + after).split("\n")
        self.lines[line : line + 1] = new_lines
        return line + len(new_lines) - 1, len(new_lines[-1]) - len(after)

    def set_line(self, line: int, text: str) -> None:
        """Replace a line's text."""
        self._change(types.Position(line, 0), types.Position(line, len(self.lines[line])), text)
        self.lines[line] = text

    async def ask(self, line: int, column: int) -> Ghost:
        """Ask for a suggestion; the text is empty when there is none."""
        started = time.monotonic()
        answer = await self._client.text_document_inline_completion_async(
            types.InlineCompletionParams(
                types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic),
                types.TextDocumentIdentifier(self._uri),
                types.Position(line, column),
            )
        )
        items = answer.items if isinstance(answer, types.InlineCompletionList) else answer or []
        text = str(items[0].insert_text) if items else ""
        return Ghost(text, (time.monotonic() - started) * 1000.0)

    async def close(self) -> None:
        """End the language server, whatever state it is in; the engine stays warm for a while."""
        # pygls raises RuntimeError for a server that has ended by itself
        with contextlib.suppress(RuntimeError):
            self._client.shutdown(None)  # its answer is not awaited: an interrupt may have ended what reads it
            self._client.exit(None)
        with contextlib.suppress(RuntimeError, asyncio.TimeoutError):
            await asyncio.wait_for(self._client.stop(), _SHUTDOWN_TIMEOUT_S)  # type: ignore[no-untyped-call]

    async def watch(self) -> None:
        """Return only when the language server has ended, which it never should. Raises ``ServiceError``."""
        while not self._client.stopped:
            await asyncio.sleep(_WATCH_S)
        raise ServiceError("the language server has ended; run: midline doctor")

    def _change(self, start: types.Position, end: types.Position, text: str) -> None:
        self._version += 1
        change = types.TextDocumentContentChangePartial(types.Range(start, end), text)
        document = types.VersionedTextDocumentIdentifier(self._version, self._uri)
        self._client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    def _on_status(self, params: object) -> None:
        self._state = str(getattr(params, "state", ""))
        self._message = str(getattr(params, "message", ""))
        self._has_news.set()
