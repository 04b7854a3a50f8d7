"""Progress in the editor's own display, which may have a button to cancel."""

import asyncio
import secrets
from collections.abc import Callable

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

_CREATE_TIMEOUT_S = 10.0


class WorkDone:
    """Work that is shown from ``begin`` to ``end``; an editor that cannot, or does not want to, shows nothing."""

    def __init__(self, server: LanguageServer) -> None:
        self._progress = server.protocol.progress
        self._token: str | None = None

    @classmethod
    async def begin(cls, server: LanguageServer, title: str, cancel: Callable[[], None]) -> "WorkDone":
        """``cancel`` is called when the user wants it to end."""
        shown = cls(server)
        window = server.client_capabilities.window
        if window is None or not window.work_done_progress:
            return shown
        token = f"midline-{secrets.token_hex(8)}"
        try:
            await asyncio.wait_for(shown._progress.create_async(token), _CREATE_TIMEOUT_S)
        except (JsonRpcException, asyncio.TimeoutError):
            return shown
        shown._token = token
        shown._progress.tokens[token].add_done_callback(lambda future: cancel() if future.cancelled() else None)
        shown._progress.begin(token, types.WorkDoneProgressBegin(title=title, cancellable=True, percentage=0))
        return shown

    def report(self, message: str, percentage: int) -> None:
        """How far it is."""
        if self._token is not None:
            self._progress.report(self._token, types.WorkDoneProgressReport(message=message, percentage=percentage))

    def end(self, message: str) -> None:
        """No more to show."""
        if self._token is not None:
            self._progress.end(self._token, types.WorkDoneProgressEnd(message=message))
            self._progress.tokens.pop(self._token, None)  # a cancellation that comes late means nothing
