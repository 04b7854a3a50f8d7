"""Builds the language server: which handler answers which method. No logic."""

import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from engine import __version__
from lsp_server.config import MidlineConfig
from lsp_server.features import bulk, completion, inline_completion, lifecycle, status, text_sync
from lsp_server.logs import log_failure
from lsp_server.protocol import MidlineProtocol, make_converter
from lsp_server.session import BackendFactory, Session

_logger = logging.getLogger(__name__)

_HANDLERS: dict[str, Callable[..., Any]] = {
    types.INITIALIZED: lifecycle.initialized,
    types.SHUTDOWN: lifecycle.shutdown,
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: lifecycle.did_change_configuration,
    types.TEXT_DOCUMENT_DID_OPEN: text_sync.did_open,
    types.TEXT_DOCUMENT_DID_CHANGE: text_sync.did_change,
    types.TEXT_DOCUMENT_DID_CLOSE: text_sync.did_close,
    text_sync.CURSOR_METHOD: text_sync.did_move_cursor,
}


class MidlineServer(LanguageServer):
    """pygls's server with our protocol and a session."""

    protocol: MidlineProtocol

    def __init__(self, config: MidlineConfig, backend_factory: BackendFactory, model: str | None = None) -> None:
        """``model`` was given on the command line and wins over ``config`` and the editor's settings."""
        super().__init__("midline", __version__, protocol_cls=MidlineProtocol, converter_factory=make_converter)
        self.session = Session(config, backend_factory, status.Link(self), model)
        self.bulk = bulk.Bulk(self, self.session)
        self.session.when_closing.append(self.bulk.aclose)
        commands = status.commands_of(self.session, self.bulk.status_line) | self.bulk.commands
        self.protocol.commands = tuple(commands)
        self.feature(types.WORKSPACE_EXECUTE_COMMAND)(partial(status.execute_command, commands))
        for method, handler in _HANDLERS.items():
            self.feature(method)(partial(handler, self.session))
        self.feature(types.INITIALIZE)(partial(self._initialize))
        self.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, inline_completion.OPTIONS)(
            partial(inline_completion.inline_completion, self.session)
        )

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Log it; pygls would pop it up in the editor. What a client did wrong is in its reply already."""
        cause = sys.exc_info()[1] or error  # pygls calls this while it handles the exception that it has wrapped
        if not isinstance(cause, JsonRpcException):
            log_failure(_logger, "a handler", cause)

    def _initialize(self, params: types.InitializeParams) -> None:
        lifecycle.initialize(self.session, params)
        if not self.session.profile.has_inline_completion:
            handler = partial(completion.completion, self.session)
            self.feature(types.TEXT_DOCUMENT_COMPLETION, completion.OPTIONS)(handler)
