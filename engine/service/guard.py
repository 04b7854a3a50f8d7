"""Who may talk to the service: holders of the token, addressing a loopback name. Light and pure ASGI.

Everything needs the token but ``/health``, which tells the others only whether the service is ready. The
``Host`` check keeps web pages out that point a name of theirs at this machine (DNS rebinding).
"""

import secrets
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.service.openai import error_body

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Guard:
    """ASGI middleware; sets ``scope["state"]["is_authenticated"]`` on what it lets through."""

    def __init__(self, app: ASGIApp, token: str, checks_host: bool) -> None:
        self._app = app
        self._token = token.encode()
        self._checks_host = checks_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 or 403."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_authenticated = self._has_token(headers)
        scope.setdefault("state", {})["is_authenticated"] = is_authenticated
        app = self._app
        if self._checks_host and not _is_loopback(headers.get("host", "")):
            app = _refusal("the Host header must name this machine as localhost", "permission_error", 403)
        elif not is_authenticated and scope["path"] != "/health":
            app = _refusal("the token is missing or wrong", "authentication_error", 401)
        await app(scope, receive, send)

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(token.strip().encode(), self._token)


def _is_loopback(host: str) -> bool:
    name = host if host.endswith("]") else host.rpartition(":")[0] if ":" in host else host
    return name.lower() in _LOOPBACK_NAMES


def _refusal(message: str, kind: str, code: int) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if code == 401 else None
    return JSONResponse(error_body(message, kind, code), status_code=code, headers=headers)
