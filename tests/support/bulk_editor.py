"""An editor with a workspace on the disk: it answers what the server asks, and applies edits as LSP says."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from lsp_server.documents import Document, Edit, Position, PositionEncoding
from tests.support.lsp_session import INLINE_CLIENT, NO_DEBOUNCE, InProcessServer, LspSession, in_process_server
from tests.support.scripted_backend import ScriptedBackend

PLAIN_EDITOR: dict[str, Any] = {**INLINE_CLIENT, "workspace": {"applyEdit": True}}
EDITOR: dict[str, Any] = {
    **INLINE_CLIENT,
    "window": {"workDoneProgress": True},
    "workspace": {"applyEdit": True, "workspaceEdit": {"documentChanges": True, "changeAnnotationSupport": {}}},
}
WANTS_STATUS: dict[str, Any] = {"initializationOptions": {"midline": {"status": True}}}


class BulkEditor:
    """A client with its folders. Documents that are not open are changed on the disk."""

    def __init__(self, session: LspSession, *roots: Path) -> None:
        self.session = session
        self.roots = roots
        self.texts: dict[str, tuple[str, int]] = {}
        """Of open documents by URI, with their versions."""
        self.edits: list[dict[str, Any]] = []
        """Every edit that the server has asked for."""
        self.accepts = True
        """Whether the user takes an edit."""
        self.shows_progress = True
        """False: it refuses to."""
        self._num_seen = 0
        self._answering = asyncio.create_task(self._answer())

    async def initialize(self, capabilities: Mapping[str, Any] = EDITOR, **params: Any) -> dict[str, Any]:
        folders = [{"uri": root.as_uri(), "name": root.name} for root in self.roots]
        return await self.session.initialize(capabilities, **{"workspaceFolders": folders, **WANTS_STATUS, **params})

    async def command(self, name: str, **arguments: Any) -> Any:
        """The result of a bulk command."""
        reply = await self.reply(name, **arguments)
        assert "error" not in reply, reply
        return reply["result"]

    async def error(self, name: str, **arguments: Any) -> tuple[int, str]:
        """Code and text of its error."""
        error = (await self.reply(name, **arguments))["error"]
        assert "\n" not in error["message"]
        return error["code"], error["message"]

    async def reply(self, name: str, **arguments: Any) -> dict[str, Any]:
        return await asyncio.wait_for(self.start_command(name, **arguments), 60)

    def start_command(self, name: str, **arguments: Any) -> "asyncio.Future[dict[str, Any]]":
        params = {"command": f"midline.server.bulk.{name}", "arguments": [arguments] if arguments else []}
        return self.session.start_request("workspace/executeCommand", params)

    def open(self, path: Path, text: str | None = None, version: int = 1) -> str:
        """Open a file; ``text`` is what the user has made of it and not saved."""
        text = path.read_bytes().decode() if text is None else text
        self.session.open(text, path.as_uri(), version=version)
        self.texts[path.as_uri()] = (text, version)
        return path.as_uri()

    def type(self, uri: str, text: str, at: tuple[int, int] = (0, 0)) -> None:
        """Insert something into an open document."""
        before, version = self.texts[uri]
        self.texts[uri] = (self._changed(before, [Edit(text, Position(*at), Position(*at))]), version + 1)
        self.session.change(text, version + 1, uri, at)

    def progress(self) -> list[dict[str, Any]]:
        """All that was shown."""
        messages = self.session.notifications
        return [message["params"]["value"] for message in messages if message["method"] == "$/progress"]

    async def cancel_progress(self) -> None:
        """Press the button."""
        created = await self.session.wait_for_notification("window/workDoneProgress/create")
        self.session.notify("window/workDoneProgress/cancel", {"token": created["token"]})

    async def aclose(self) -> None:
        self._answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._answering

    async def _answer(self) -> None:
        while True:
            new = self.session.notifications[self._num_seen :]
            self._num_seen += len(new)
            for message in filter(lambda message: "id" in message, new):
                self.session.send({"jsonrpc": "2.0", "id": message["id"], **self._answer_to(message)})
            await asyncio.sleep(0.005)

    def _answer_to(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["method"] == "window/workDoneProgress/create":
            return {"result": None} if self.shows_progress else {"error": {"code": -32603, "message": "no"}}
        assert message["method"] == "workspace/applyEdit"
        self.edits.append(message["params"]["edit"])
        return {"result": {"applied": self.accepts and self._apply(message["params"]["edit"])}}

    def _apply(self, edit: dict[str, Any]) -> bool:
        """All or nothing, as with a version that is not the document's."""
        changes = [(uri, None, edits) for uri, edits in edit.get("changes", {}).items()]
        for change in edit.get("documentChanges", []):
            document = change["textDocument"]
            changes.append((document["uri"], document["version"], change["edits"]))
        if any(version not in (None, self.texts.get(uri, ("", None))[1]) for uri, version, _ in changes):
            return False
        for uri, _, raw in changes:
            edits = [_edit_of(item) for item in sorted(raw, key=_start_of, reverse=True)]
            if uri in self.texts:
                before, number = self.texts[uri]
                self.texts[uri] = (self._changed(before, edits), number + 1)
            else:
                path = Path.from_uri(uri) if hasattr(Path, "from_uri") else Path(uri.removeprefix("file://"))
                text = path.read_bytes().decode("utf-8-sig")  # an editor takes the byte order mark off
                path.write_bytes(self._changed(text, edits).encode())
        return True

    def _changed(self, text: str, edits: list[Edit]) -> str:
        document = Document(text, "", 1, PositionEncoding.UTF16)
        document.change(edits, 2)
        return document.full_text()


def _start_of(edit: dict[str, Any]) -> tuple[int, int]:
    start = edit["range"]["start"]
    return start["line"], start["character"]


def _edit_of(edit: dict[str, Any]) -> Edit:
    start, end = (Position(edit["range"][name]["line"], edit["range"][name]["character"]) for name in ("start", "end"))
    return Edit(edit["newText"], start, end)


@contextlib.asynccontextmanager
async def bulk_editor(
    *roots: Path, mode: str = "plain", backend: ScriptedBackend | None = None, enabled: bool = True
) -> AsyncIterator[tuple[BulkEditor, InProcessServer]]:
    """An editor and a server in this process, whose bulk engine is the scripted one."""
    model = roots[0].parent / "tiny.gguf"
    model.touch()
    config = replace(NO_DEBOUNCE, engine=EngineConfig(model=str(model)), enabled=enabled)
    async with in_process_server(backend or ScriptedBackend(), config) as running:
        running.server.bulk.worker_command = (sys.executable, "-m", "tests.support.bulk_script", mode)
        editor = BulkEditor(running.session, *roots)
        try:
            yield editor, running
        finally:
            await editor.aclose()
