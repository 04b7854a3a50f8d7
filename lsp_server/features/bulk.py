"""The names of the commands for bulk completion, and their import when the first is called: most sessions never do."""

import asyncio
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pygls.lsp.server import LanguageServer

from lsp_server.features.status import Command
from lsp_server.session import Session

if TYPE_CHECKING:
    from lsp_server.features.bulk_commands import BulkCommands

_NAMES = ("select", "start", "cancel", "review", "apply")


class Bulk:
    """What one connection has to do with bulk completion."""

    def __init__(self, server: LanguageServer, session: Session) -> None:
        self.worker_command: Sequence[str] | None = None
        """In place of the engine's own, for tests."""
        self.commands: dict[str, Command] = {
            f"midline.server.bulk.{name}": partial(self._execute, name) for name in _NAMES
        }
        self._server = server
        self._session = session
        self._loaded: BulkCommands | None = None

    def status_line(self) -> str:
        """The last run in one line; empty if nothing of it is left to do."""
        return self._loaded.status_line() if self._loaded is not None else ""

    async def aclose(self) -> None:
        """End what is going on."""
        if self._loaded is not None:
            await self._loaded.aclose()

    async def _execute(self, name: str, arguments: Sequence[Any]) -> dict[str, Any]:
        if self._loaded is None:
            await asyncio.to_thread(import_module, "lsp_server.features.bulk_commands")  # somebody may type meanwhile
            from lsp_server.features.bulk_commands import BulkCommands

            self._loaded = self._loaded or BulkCommands(self._server, self._session, self.worker_command)
        result: dict[str, Any] = await getattr(self._loaded, name)(arguments)
        return result
