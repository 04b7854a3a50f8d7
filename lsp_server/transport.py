"""Bytes in and out of a connection: frames, the end of the client, the exit code. Knows no method of LSP.

Messages are handled one after the other, and each request's handler has begun before the next message is read, so
that it sees the document as it was when the request was sent.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO, Protocol

from engine.errors import ServiceError
from engine.service.registration import is_process_alive
from lsp_server.protocol import MidlineProtocol

_logger = logging.getLogger(__name__)

_DRAIN_TIMEOUT_S = 1.0
_PARENT_POLL_S = 2.0
_READ_BYTES = 65536


class Writer(Protocol):
    """What pygls writes to."""

    def write(self, data: bytes) -> None:
        """Send all of ``data``."""

    def close(self) -> None:
        """End the connection."""


class PipeWriter:
    """A pipe as pygls's writer. A client that is gone is no error: the reader will see its end."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe

    def write(self, data: bytes) -> None:
        """Send all of ``data``, if anyone is there."""
        try:
            self._pipe.write(data)
            self._pipe.flush()
        except OSError:
            _logger.info("the client does not read any more")

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()


def pipe_reader(file_number: int) -> asyncio.StreamReader:
    """A stream over a pipe, on every platform. The thread behind it ends with the pipe or the process."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()

    def pump() -> None:
        try:
            while data := os.read(file_number, _READ_BYTES):  # unbuffered: holds no lock that would block our exit
                loop.call_soon_threadsafe(reader.feed_data, data)
            loop.call_soon_threadsafe(reader.feed_eof)
        except RuntimeError:
            return  # the loop has ended before the client

    threading.Thread(target=pump, name="lsp-reader", daemon=True).start()
    return reader


async def serve(protocol: MidlineProtocol, reader: asyncio.StreamReader, writer: Writer) -> int:
    """Handle messages until ``exit`` or the end of the stream. The exit code is 0 only after ``shutdown``."""
    protocol.set_writer(writer)
    while not protocol.has_exited:
        body = await read_message(reader)
        if body is None:
            break
        protocol.handle_body(body)
        await asyncio.sleep(0)  # lets the handler begin
    if not protocol.has_exited:
        return 1
    await protocol.drain(_DRAIN_TIMEOUT_S)
    return 0 if protocol.has_shut_down else 1


async def read_message(reader: asyncio.StreamReader) -> bytes | None:
    """The body of the next message, or None at the end of the stream."""
    try:
        num_bytes = await _read_header(reader)
        return None if num_bytes is None else await reader.readexactly(num_bytes)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except ValueError:
        _logger.error("the client sends no valid Content-Length; ending")
        return None


async def accept_one(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Listen, say where on stderr, and return the first connection; no other is served. Raises ``ServiceError``."""
    connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    connected = asyncio.get_running_loop().create_future()

    def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if connected.done():
            writer.close()
        else:
            connected.set_result((reader, writer))

    try:
        listener = await asyncio.start_server(on_connection, host, port)
    except OSError as error:
        raise ServiceError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    bound_host, bound_port = listener.sockets[0].getsockname()[:2]
    sys.stderr.write(f"midline: listening on {bound_host}:{bound_port}\n")
    sys.stderr.flush()
    try:
        return await connected
    finally:
        listener.close()


async def wait_for_parent_end(parent_pid: Callable[[], int | None]) -> None:
    """Return when the process that the client named, if it has, is gone."""
    while (pid := parent_pid()) is None or is_process_alive(pid):
        await asyncio.sleep(_PARENT_POLL_S)


async def _read_header(reader: asyncio.StreamReader) -> int | None:
    num_bytes: int | None = None
    while line := await reader.readline():
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            num_bytes = int(value)
            if num_bytes < 0:
                raise ValueError(num_bytes)
        elif not line.strip() and num_bytes is not None:
            return num_bytes
    return None
