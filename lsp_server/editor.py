"""An editor without a window: it starts the real language server and speaks LSP with it over stdio.

It knows documents as text and positions in UTF-16, and not what is typed into them (``lsp_server.demo`` and
``lsp_server.bench`` do).
"""

import asyncio
import contextlib
import logging
import os
import sys
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient

from engine import __version__
from engine.errors import ServiceError
from lsp_server.features.text_sync import CURSOR_METHOD

_SHUTDOWN_TIMEOUT_S = 5.0
_WATCH_S = 0.2


@dataclass(frozen=True)
class Question:
    """A request that was sent; its answer comes on the event loop, or ends with pygls's exception."""

    id: str
    answer: "Future[Any]"


class Editor:
    """One language server, and what an editor sends to it."""

    def __init__(self, name: str) -> None:
        # of a server that dies, one logs tracebacks of answers that come too late, the other writes to a closed pipe
        for logger in ("pygls", "asyncio"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        self._name = name
        self._client = LanguageClient(name, __version__)
        self._versions: dict[str, int] = {}
        self._state = ""
        self._message = ""
        self._has_news = asyncio.Event()
        self._client.feature("midline/status")(lambda params: self._on_status(params))  # it marks the function
        self._client.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: None)  # the status says it too

    async def start(
        self,
        model: str | None,
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Start ``midline serve``, with more in its environment and an editor's settings if given."""
        model_args = ["--model", model] if model else []
        # in a session of its own: Ctrl-C is for us, and the server ends when we close its input
        command = (sys.executable, "-m", "lsp_server", "serve", "--stdio", *model_args)
        await self._client.start_io(*command, start_new_session=True, env={**os.environ, **(environment or {})})
        capabilities = types.ClientCapabilities(
            text_document=types.TextDocumentClientCapabilities(
                inline_completion=types.InlineCompletionClientCapabilities()
            )
        )
        await self._client.initialize_async(
            types.InitializeParams(
                capabilities=capabilities,
                client_info=types.ClientInfo(self._name, __version__),
                initialization_options={"midline": {"status": True, "settings": dict(settings or {})}},
            )
        )
        self._client.initialized(types.InitializedParams())

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

    def open(self, uri: str, language_id: str, text: str) -> None:
        """Open a document."""
        self._versions[uri] = 0
        item = types.TextDocumentItem(uri, language_id, 0, text)
        self._client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def change(self, uri: str, start: types.Position, end: types.Position, text: str) -> None:
        """Replace a range of a document."""
        self._versions[uri] += 1
        change = types.TextDocumentContentChangePartial(types.Range(start, end), text)
        document = types.VersionedTextDocumentIdentifier(self._versions[uri], uri)
        self._client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    def move_cursor(self, uri: str, position: types.Position) -> None:
        """Tell where the cursor has come to rest."""
        place = types.TextDocumentPositionParams(types.TextDocumentIdentifier(uri), position)
        self._client.protocol.notify(CURSOR_METHOD, place)

    def close_document(self, uri: str) -> None:
        """Close a document."""
        del self._versions[uri]
        self._client.text_document_did_close(types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(uri)))

    def ask(self, uri: str, position: types.Position) -> Question:
        """Ask for a suggestion, as after a key."""
        params = types.InlineCompletionParams(
            types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic),
            types.TextDocumentIdentifier(uri),
            position,
        )
        return self._request(types.TEXT_DOCUMENT_INLINE_COMPLETION, params)

    def cancel(self, question: Question) -> None:
        """The answer is not wanted any more; one comes all the same."""
        self._client.cancel_request(types.CancelParams(question.id))

    def ask_status(self) -> Question:
        """Ask what the server says of itself."""
        params = types.ExecuteCommandParams("midline.server.showStatus")
        return self._request(types.WORKSPACE_EXECUTE_COMMAND, params)

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

    def _request(self, method: str, params: object) -> Question:
        msg_id = str(uuid.uuid4())
        return Question(msg_id, self._client.protocol.send_request(method, params, msg_id=msg_id))

    def _on_status(self, params: object) -> None:
        self._state = str(getattr(params, "state", ""))
        self._message = str(getattr(params, "message", ""))
        self._has_news.set()


async def run_beside(editor: Editor, work: "asyncio.Task[None]") -> None:
    """Wait for what uses the editor, or until its server ends, whichever comes first; then close it.

    Raises what the work raises, or ``ServiceError``.
    """
    watching = asyncio.create_task(editor.watch())
    try:
        await asyncio.wait((work, watching), return_when=asyncio.FIRST_COMPLETED)
        await (work if work.done() else watching)
    except RuntimeError as error:  # pygls's for requests that a dead server leaves open
        raise ServiceError(f"the language server has ended ({error}); run: midline doctor") from error
    finally:
        work.cancel()
        watching.cancel()
        await asyncio.gather(work, watching, return_exceptions=True)
        await editor.close()


def suggested_text(answer: object) -> str:
    """The text of an answer to ``Editor.ask``; empty when there is none."""
    items = answer.items if isinstance(answer, types.InlineCompletionList) else answer or []
    return str(items[0].insert_text) if isinstance(items, (list, tuple)) and items else ""
