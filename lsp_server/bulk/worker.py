"""The client of ``python -m engine.bulk``, the process that holds the model. Knows the wire, no holes.

The process ends by itself when its input ends or nobody reads its output: nothing is left behind when we are killed.
"""

import asyncio
import contextlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import engine
from engine.bulk.wire import Failure, Said, Start, Summary, Told, decode, encode
from engine.errors import ServiceError
from engine.service.registration import last_log_line

COMMAND = (sys.executable, "-m", "engine.bulk")
_MAX_LINE_BYTES = 1 << 24
_END_S = 0.5
_KILL = 9
_GO_ON = "run the same command again to go on"


class Worker:
    """One run of the process; see ``worker``."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    async def tell(self, message: Told) -> None:
        """Hand something over; waits while the process does not keep up. Read ``said`` at the same time."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):  # whoever reads ``said`` learns why
            self._process.stdin.write(encode(message))
            await self._process.stdin.drain()

    def finish(self) -> None:
        """No more requests will come."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def said(self) -> AsyncIterator[Said]:
        """What the process says, up to its ``Summary``.

        Raises ``ServiceError`` where it ends before, or says that it cannot compute.
        """
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = decode(line)
            if isinstance(message, Failure):
                raise ServiceError(message.message)
            yield message
            if isinstance(message, Summary):
                return
        raise ServiceError(self._obituary(await self._process.wait()))

    def _obituary(self, code: int) -> str:
        if code < 0:
            is_memory = -code == _KILL
            remedy = "a smaller max_batch or engine.max_memory_mb needs less"
            why = f", as when memory runs out; {remedy}" if is_memory else ""
            return f"the bulk engine was killed by signal {-code}{why}; {_GO_ON}"
        line = last_log_line(self._log)
        return f"the bulk engine ended with code {code}{f' ({line})' if line else ''}; {_GO_ON}"


@contextlib.asynccontextmanager
async def worker(start: Start, command: Sequence[str] = COMMAND) -> AsyncIterator[Worker]:
    """The process, told how to compute; leaving the context before it is done ends it at once.

    Raises ``ServiceError`` where it cannot be started.
    """
    if importlib.util.find_spec("torch") is None:
        raise ServiceError("the engine is not installed; in Midline's folder run: pip install '.[local]'")
    with tempfile.TemporaryDirectory(prefix="midline-bulk-", ignore_cleanup_errors=True) as folder:
        log = Path(folder, "stderr")
        process = await _spawn(command, log)
        try:
            client = Worker(process, log)
            await client.tell(start)
            yield client
        finally:
            await _end(process)


async def _spawn(command: Sequence[str], log: Path) -> asyncio.subprocess.Process:
    creationflags = 0
    if sys.platform == "win32":
        creationflags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    try:
        with log.open("wb") as errors:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                limit=_MAX_LINE_BYTES,
                cwd=Path(engine.__file__).parents[1],  # never the user's folder: -m imports from it
                start_new_session=True,  # Ctrl-C is ours to handle
                creationflags=creationflags,
            )
    except OSError as error:
        raise ServiceError(f"cannot start the bulk engine: {error.strerror or error}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    for end in (process.terminate, process.kill):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                end()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), _END_S)
