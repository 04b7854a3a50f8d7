"""Open, change and close of documents. Each change ends the completion that was running for the old text."""

import logging
from typing import Any

from lsprotocol import types

from lsp_server.completion.request import EmptyReason
from lsp_server.documents import Edit, Position
from lsp_server.session import Session

_logger = logging.getLogger(__name__)

CURSOR_METHOD = "midline/didMoveCursor"


def did_open(session: Session, params: types.DidOpenTextDocumentParams) -> None:
    """Take over a document's text."""
    item = params.text_document
    session.inflight.end(item.uri, EmptyReason.DOCUMENT_CHANGED)
    session.forget(item.uri)
    session.documents.open(item.uri, item.text, str(item.language_id), item.version)


def did_change(session: Session, params: types.DidChangeTextDocumentParams) -> None:
    """Apply edits, incremental or full."""
    uri = params.text_document.uri
    session.inflight.end(uri, EmptyReason.DOCUMENT_CHANGED)
    session.end_idle_work()
    if not session.documents.change(uri, map(_edit, params.content_changes), params.text_document.version):
        _logger.warning("ignored a change of a document that is not open")


def did_close(session: Session, params: types.DidCloseTextDocumentParams) -> None:
    """Forget a document."""
    session.inflight.end(params.text_document.uri, EmptyReason.DOCUMENT_CLOSED)
    session.forget(params.text_document.uri)
    session.documents.close(params.text_document.uri)


def did_move_cursor(session: Session, params: Any) -> None:
    """``midline/didMoveCursor``: where the cursor rests, from a client that says so; parameters as of a hover."""
    try:
        uri, line, character = params.textDocument.uri, params.position.line, params.position.character
    except AttributeError:
        _logger.warning("ignored notification %s: its parameters are malformed", CURSOR_METHOD)
        return
    if isinstance(uri, str) and type(line) is int and type(character) is int and min(line, character) >= 0:
        session.move_cursor(uri, Position(line, character))


def position_of(position: types.Position) -> Position:
    """LSP's position as the document store's."""
    return Position(position.line, position.character)


def edit_of(place: types.Range, text: str) -> Edit:
    """LSP's replacement of a range as the document store's."""
    return Edit(text, position_of(place.start), position_of(place.end))


def _edit(change: types.TextDocumentContentChangeEvent) -> Edit:
    if isinstance(change, types.TextDocumentContentChangePartial):
        return edit_of(change.range, change.text)
    return Edit(change.text)
