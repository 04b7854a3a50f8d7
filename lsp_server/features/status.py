"""Status for the user: ``midline/status``, warnings, and the commands that ask for either.

The commands' names have a part of their own, since VS Code registers a server's commands globally beside those of
the extension.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from lsp_server.backends.base import BackendStatus
from lsp_server.session import Session

STATUS_METHOD = "midline/status"


class Link:
    """An ``EditorLink`` over a connection."""

    def __init__(self, server: LanguageServer) -> None:
        self._server = server

    def send_status(self, status: BackendStatus) -> None:
        """Send ``midline/status``."""
        params = {"state": status.state.value, "model": status.model, "message": status.message}
        self._server.protocol.notify(STATUS_METHOD, params)

    def show_warning(self, text: str) -> None:
        """Show one line to the user."""
        self._server.window_show_message(types.ShowMessageParams(types.MessageType.Warning, text))

    async def pull_settings(self) -> Any:
        """Ask for the section ``midline``."""
        item = types.ConfigurationItem(section="midline")
        return (await self._server.workspace_configuration_async(types.ConfigurationParams([item])))[0]


Command = Callable[[Sequence[Any]], Awaitable[dict[str, Any]]]
"""Takes the arguments of ``workspace/executeCommand``."""


async def execute_command(commands: Mapping[str, Command], params: types.ExecuteCommandParams) -> Any:
    """Run one of ``commands``."""
    command = commands.get(params.command)
    if command is None:
        raise JsonRpcInvalidParams(f"unknown command {params.command}; known: {', '.join(commands)}")
    return await command(params.arguments or ())


def commands_of(session: Session, bulk_line: Callable[[], str]) -> dict[str, Command]:
    """The commands of this module by name; ``bulk_line`` says how bulk completion stands."""

    async def show_status(arguments: Sequence[Any]) -> dict[str, Any]:
        return {**session.status(), "bulk": bulk_line()}

    async def restart_engine(arguments: Sequence[Any]) -> dict[str, Any]:
        await session.restart_backend()
        return await show_status(arguments)

    return {"midline.server.restartEngine": restart_engine, "midline.server.showStatus": show_status}
