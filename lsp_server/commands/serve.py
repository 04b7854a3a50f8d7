"""``midline serve``: the language server over stdin and stdout, or over one TCP connection.

Standard output belongs to LSP alone: before anything else is imported, file descriptor 1 is pointed to stderr, so
that no print of a library, not even one in C, can break the stream.
"""

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, BinaryIO

import typer

from lsp_server.errors import UsageError

if TYPE_CHECKING:
    from lsp_server.server import MidlineServer

_LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


def run_serve(tcp: str | None, model: str | None, log_level: str) -> None:
    """Serve one client, then exit: 0 after ``shutdown`` and ``exit``, else 1."""
    address = None if tcp is None else parse_address(tcp)
    output = claim_stdout()
    # pygls takes half a second to import; what comes before must be quick and silent.
    from lsp_server.logs import set_up_logging

    set_up_logging(log_level)
    code = asyncio.run(_serve_stdio(output, model) if address is None else _serve_tcp(address, model))
    raise typer.Exit(code)


def claim_stdout() -> BinaryIO:
    """The real standard output; whatever else writes there goes to stderr from now on."""
    sys.stdout.flush()
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return output


def parse_address(text: str) -> tuple[str, int]:
    """``[HOST:]PORT`` on this machine. Raises ``UsageError``."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536):
        raise UsageError(f"--tcp {text} is not [HOST:]PORT with a port from 0 to 65535")
    if host not in _LOOPBACK_HOSTS:
        raise UsageError(f"--tcp {text}: only this machine may connect; use one of {', '.join(_LOOPBACK_HOSTS)}")
    return host, int(port)


def _make_server(model: str | None) -> "MidlineServer":
    from engine.errors import ConfigError
    from engine.paths import config_file
    from lsp_server.backends.local import LocalBackend
    from lsp_server.config import MidlineConfig
    from lsp_server.server import MidlineServer
    from lsp_server.settings import load_config

    try:
        return MidlineServer(load_config(config_file()), LocalBackend, model)
    except ConfigError as error:  # an editor restarts a server that exits; this one works and says what is wrong
        server = MidlineServer(MidlineConfig(), LocalBackend, model)
        server.session.startup_warning = f"Midline uses default settings: {error}"
        return server


async def _serve_stdio(output: BinaryIO, model: str | None) -> int:
    from lsp_server.transport import PipeWriter, pipe_reader, serve

    server = _make_server(model)
    try:
        return await serve(server.protocol, pipe_reader(0), PipeWriter(output))
    finally:
        await server.session.aclose()


async def _serve_tcp(address: tuple[str, int], model: str | None) -> int:
    from lsp_server.transport import accept_one, serve, wait_for_parent_end

    server = _make_server(model)
    reader, writer = await accept_one(*address)
    serving = asyncio.create_task(serve(server.protocol, reader, writer))
    watching = asyncio.create_task(wait_for_parent_end(lambda: server.process_id))
    try:
        await asyncio.wait((serving, watching), return_when=asyncio.FIRST_COMPLETED)
        return serving.result() if serving.done() else 1
    finally:
        serving.cancel()
        watching.cancel()
        await server.session.aclose()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
