"""JSON-RPC as LSP wants it, on top of pygls: every request gets exactly one reply, and nothing kills the server.

pygls reads one message into types and finds the handler; here is what it gets wrong: malformed parameters of a
request were never answered, errors carried tracebacks, documents were split at the wrong line ends, and ``exit``
ended the process from inside a callback.
"""

import asyncio
import json
import logging
import time
from collections.abc import Generator
from typing import Any

from cattrs import Converter
from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, default_converter, lsp_method

from lsp_server.logs import TRACE

_logger = logging.getLogger(__name__)

_PARSE_ERROR = -32700
_INVALID_REQUEST = -32600
_METHOD_NOT_FOUND = -32601
_INVALID_PARAMS = -32602
_INTERNAL_ERROR = -32603
_NOT_INITIALIZED = -32002

_WITHOUT_PARAMS = (types.SHUTDOWN, types.EXIT)  # some clients send {} or null
_OWN = (  # pygls would keep a second copy of every document, and cannot cancel a command
    types.TEXT_DOCUMENT_DID_OPEN,
    types.TEXT_DOCUMENT_DID_CHANGE,
    types.TEXT_DOCUMENT_DID_CLOSE,
    types.NOTEBOOK_DOCUMENT_DID_OPEN,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE,
    types.WORKSPACE_EXECUTE_COMMAND,
)


class MidlineProtocol(LanguageServerProtocol):
    """The protocol of one connection."""

    def __init__(self, server: LanguageServer, converter: Converter) -> None:
        super().__init__(server, converter)
        self.commands: tuple[str, ...] = ()
        """Advertised for ``workspace/executeCommand``."""
        self.has_exited = False
        self._is_initialized = False

    @property
    def has_shut_down(self) -> bool:
        """Whether the client has asked to shut down, as it should before ``exit``."""
        return bool(self._shutdown)

    def handle_body(self, body: bytes) -> None:
        """Handle one message; never raises for what a client sends."""
        try:
            message = json.loads(body)
        except (ValueError, RecursionError):
            _logger.warning("a message is not JSON")
            self._refuse(None, _PARSE_ERROR, "the message is not JSON")
            return
        _logger.log(TRACE, "received %s", message)
        if not isinstance(message, dict) or message.get("jsonrpc") != self.VERSION:
            self._refuse(_usable_id(message), _INVALID_REQUEST, "the message is not a JSON-RPC 2.0 object")
        elif not isinstance(message.get("method"), str):
            self._handle_reply(message)
        elif "id" in message:
            self._handle_request_message(message)
        else:
            self._handle_notification_message(message)

    async def drain(self, timeout_s: float) -> None:
        """Wait until all requests have been answered, or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if all(future.done() for future in list(self._request_futures.values())):
                return
            await asyncio.sleep(0.005)

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: types.InitializeParams) -> Generator[Any, Any, types.InitializeResult]:
        """As in pygls, with our choice of position encoding and our commands."""
        result = yield from super().lsp_initialize(params)
        result.capabilities.position_encoding = choose_encoding(params.capabilities)
        result.capabilities.execute_command_provider = types.ExecuteCommandOptions(commands=list(self.commands))
        self._is_initialized = True
        return result

    @lsp_method(types.EXIT)
    def lsp_exit(self, *_: Any) -> None:  # type: ignore[override]
        """The transport ends when it sees this."""
        self.has_exited = True

    def _register_builtin_features(self) -> None:
        super()._register_builtin_features()  # type: ignore[no-untyped-call]
        for method in _OWN:
            self.fm.builtin_features.pop(method, None)

    def _handle_request_message(self, message: dict[str, Any]) -> None:
        method, msg_id = message["method"], _usable_id(message)
        if msg_id is None:
            self._refuse(None, _INVALID_REQUEST, "the request's id is neither a string nor a whole number")
        elif self._shutdown:
            self._refuse(msg_id, _INVALID_REQUEST, "the server is shutting down")
        elif not self._is_initialized and method != types.INITIALIZE:
            self._refuse(msg_id, _NOT_INITIALIZED, "the server is not initialized")
        elif self._is_initialized and method == types.INITIALIZE:
            self._refuse(msg_id, _INVALID_REQUEST, "the server is initialized already")
        elif not self._is_known(method):
            self._refuse(msg_id, _METHOD_NOT_FOUND, f"unknown method {method}")
        elif (request := self._structured(message)) is None:
            self._refuse(msg_id, _INVALID_PARAMS, f"the parameters of {method} are malformed")
        else:
            self.handle_message(request)

    def _handle_notification_message(self, message: dict[str, Any]) -> None:
        method = message["method"]
        is_early = not self._is_initialized and method != types.EXIT
        if is_early or not (self._is_known(method) or method == types.CANCEL_REQUEST):
            _logger.debug("ignored notification %s", method)
            return
        notification = self._structured(message)
        if notification is None:
            _logger.warning("ignored notification %s: its parameters are malformed", method)
        else:
            self.handle_message(notification)

    def _handle_reply(self, message: dict[str, Any]) -> None:
        """The client's answer to a request of ours."""
        msg_id = _usable_id(message)
        if msg_id is None or msg_id not in self._request_futures:
            _logger.debug("ignored a reply to no request")
            return
        try:
            self.handle_message(self.structure_message(message))
        except Exception as error:  # noqa: BLE001 -- whatever is wrong with it, the one who waits must learn of it
            future = self._request_futures.pop(msg_id, None)
            if future is not None and not future.done():
                future.set_exception(error)

    def _structured(self, message: dict[str, Any]) -> Any:
        """The message as its type, or None when it does not fit."""
        if message["method"] in _WITHOUT_PARAMS:
            message.pop("params", None)
        try:
            return self.structure_message(message)
        except Exception as error:  # converters raise anything on anything; the message is at fault
            _logger.log(TRACE, "malformed %s", message["method"], exc_info=error)
            return None

    def _is_known(self, method: str) -> bool:
        return method in self.fm.builtin_features or method in self.fm.features

    def _refuse(self, msg_id: int | str | None, code: int, text: str) -> None:
        error = types.ResponseError(code=code, message=text)
        self._send_data(types.ResponseErrorMessage(id=msg_id, error=error))

    def _send_response(self, msg_id: int | str, result: Any = None, error: types.ResponseError | None = None) -> None:
        """As in pygls, without the traceback and the exception's text, which may quote a buffer."""
        if error is not None:
            text = "internal error; see the server's log" if error.code == _INTERNAL_ERROR else error.message
            error = types.ResponseError(code=error.code, message=text)
        super()._send_response(msg_id, result, error)


def choose_encoding(capabilities: types.ClientCapabilities) -> str:
    """UTF-16 if the client can; else the first that both know."""
    offered = [str(getattr(item, "value", item)) for item in _offered_encodings(capabilities)]
    if not offered or "utf-16" in offered:
        return "utf-16"
    return next((item for item in offered if item in ("utf-8", "utf-32")), "utf-16")


def make_converter() -> Converter:
    """pygls's converter, tolerant about the kind of trigger: its scale once began at 0, and a kind may be new."""
    converter: Converter = default_converter()  # type: ignore[no-untyped-call]
    scale = _TriggerScale()
    converter.register_structure_hook(types.InlineCompletionTriggerKind, lambda value, _: scale.kind_of(value))
    return converter


class _TriggerScale:
    """Invoked and Automatic are 1 and 2, or 0 and 1 with older clients: known once a 0 has been seen."""

    def __init__(self) -> None:
        self._is_old = False

    def kind_of(self, value: Any) -> types.InlineCompletionTriggerKind:
        if type(value) is not int:
            raise ValueError("a trigger kind is a whole number")
        self._is_old |= value == 0
        is_invoked = value == (0 if self._is_old else 1)
        return types.InlineCompletionTriggerKind.Invoked if is_invoked else types.InlineCompletionTriggerKind.Automatic


def _offered_encodings(capabilities: types.ClientCapabilities) -> list[Any]:
    general = capabilities.general
    return list(general.position_encodings or ()) if general else []


def _usable_id(message: Any) -> int | str | None:
    msg_id = message.get("id") if isinstance(message, dict) else None
    return msg_id if isinstance(msg_id, (int, str)) and not isinstance(msg_id, bool) else None
