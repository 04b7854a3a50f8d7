import asyncio
import os
import subprocess
import sys

import pytest

from lsp_server.transport import PipeWriter, pipe_reader, read_message, wait_for_parent_end


async def messages(data: bytes) -> list[bytes]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    found = []
    while (body := await read_message(reader)) is not None:
        found.append(body)
    return found


@pytest.mark.parametrize(
    ("data", "bodies"),
    [
        (b"Content-Length: 2\r\n\r\n{}Content-Length: 1\r\n\r\n1", [b"{}", b"1"]),
        (b"content-length:2\r\nContent-Type: x\r\n\r\n{}", [b"{}"]),
        (b"Content-Type: x\r\nContent-Length: 2\n\n{}", [b"{}"]),
        (b"\r\nContent-Length: 2\r\n\r\n{}", [b"{}"]),
        (b"Content-Length: 0\r\n\r\n", [b""]),
        (b"Content-Length: 5\r\n\r\n{}", []),  # cut off
        (b"Content-Length: x\r\n\r\n{}", []),
        (b"Content-Length: -2\r\n\r\n{}", []),
        (b"x" * 100_000, []),
        (b"", []),
    ],
)
async def test_frames(data: bytes, bodies: list[bytes]) -> None:
    assert await messages(data) == bodies


async def test_pipe_reader_brings_bytes_and_the_end() -> None:
    reading, writing = os.pipe()
    reader = pipe_reader(reading)
    os.write(writing, b"Content-Length: 2\r\n\r\n{}")
    assert await read_message(reader) == b"{}"
    os.close(writing)
    assert await read_message(reader) is None
    os.close(reading)


def test_writing_to_a_client_that_is_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    pipe = os.fdopen(writing, "wb", buffering=0)
    PipeWriter(pipe).write(b"x")
    pipe.close()


async def test_end_of_the_parent_is_seen() -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watching = asyncio.create_task(wait_for_parent_end(lambda: parent.pid))
    await asyncio.sleep(0)
    assert not watching.done()
    parent.communicate(b"\n")
    await asyncio.wait_for(watching, 20)
