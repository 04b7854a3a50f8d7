"""Start, settings and end of a connection."""

from collections.abc import Mapping

from lsprotocol import types

from lsp_server.clients import midline_options, profile_of
from lsp_server.documents import PositionEncoding
from lsp_server.protocol import choose_encoding
from lsp_server.session import Session


def initialize(session: Session, params: types.InitializeParams) -> None:
    """Learn about the client; pygls answers with the capabilities."""
    session.profile = profile_of(params)
    session.documents.encoding = PositionEncoding(choose_encoding(params.capabilities))
    session.apply_editor_settings(midline_options(params).get("settings") or {}, is_started=False)


def initialized(session: Session, params: types.InitializedParams) -> None:
    """Start the engine, so that it is warm at the first keystroke."""
    session.start()


async def did_change_configuration(session: Session, params: types.DidChangeConfigurationParams) -> None:
    """Take new settings; null means that the server should ask for them."""
    if params.settings is None:
        await session.pull_editor_settings()
    elif isinstance(params.settings, Mapping) and "midline" in params.settings:
        session.apply_editor_settings(params.settings["midline"] or {})


async def shutdown(session: Session, params: None) -> None:
    """End all that is going on; its requests are answered before this one."""
    await session.end_work()
