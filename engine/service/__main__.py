"""The process of the service: ``python -m engine.service``. Imports torch only in the loading thread.

Order of events: lock, socket, registration, answering ``/health``, loading. Whatever ends the process removes
socket and registration, but a model that cannot be loaded leaves its error in the registration.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cattrs
import filelock
import uvicorn

from engine import __version__
from engine.config import EngineConfig, ServiceConfig, check
from engine.errors import ConfigError, MidlineError
from engine.machine.auto import settled
from engine.machine.priority import give_way
from engine.service.app import create_app, server_config
from engine.service.listener import HAS_UNIX_SOCKETS, listen_tcp, listen_unix, tcp_url
from engine.service.registration import (
    EXIT_ALREADY_RUNNING,
    TOKEN_VARIABLE,
    UNIX_PREFIX,
    Registration,
    ServiceFiles,
    is_process_alive,
    new_token,
    normalised,
    read_registration,
    write_registration,
)
from engine.service.rehearsal import measured_suggestion
from engine.service.runtime import LoadedEngine, Runtime

logger = logging.getLogger("engine.service")

_LOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    config: ServiceConfig
    host: str
    port: int | None
    socket_path: Path | None
    is_foreground: bool


def main(arguments: list[str] | None = None) -> int:
    """Run until idle, asked to stop, or failed; returns the exit code."""
    faulthandler.enable()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    try:
        options = _parse(arguments)
        give_way(options.config.engine.niceness)
        service, code = _run(options, new_token())
    except filelock.Timeout:
        logger.warning("another engine for this model and these settings is running")
        return EXIT_ALREADY_RUNNING
    except MidlineError as error:
        sys.stderr.write(f"midline: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    if code or service.runtime.is_loading_thread_alive:
        logging.shutdown()
        # Torch cannot be interrupted, and ending the interpreter under it would crash; after a failed load that only
        # takes time, in which nobody can start another.
        os._exit(code)
    return code


def _run(options: Options, token: str) -> "tuple[_Service, int]":
    files = ServiceFiles.for_engine(options.config.engine)
    files.create_folder()
    with _lock(files), _listening(options, files) as (listener, address):
        registration = Registration(
            pid=os.getpid(),
            address=address,
            token=token,
            model=options.config.engine.model,
            version=__version__,
            started_at_s=time.time(),
            is_foreground=options.is_foreground,
        )
        service = _Service(options, files, registration)
        return service, service.run(listener)


class _Server(uvicorn.Server):
    """Withdraws the registration before the socket closes: whoever is refused knows that nobody serves."""

    def __init__(self, config: uvicorn.Config, withdraw: Callable[[], None]) -> None:
        super().__init__(config)
        self._withdraw = withdraw

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving."""
        self._withdraw()
        await super().shutdown(sockets)


class _Service:
    """One run of the service on an open socket."""

    def __init__(self, options: Options, files: ServiceFiles, registration: Registration) -> None:
        self.runtime = Runtime(options.config, load_engine)
        self._files = files
        self._registration = registration
        app = create_app(
            self.runtime,
            token=registration.token,
            checks_host=not registration.address.startswith(UNIX_PREFIX),
            request_exit=self._request_exit,
        )
        self._server = _Server(server_config(app), self._withdraw)

    def run(self, listener: socket.socket) -> int:
        """Serve until the end; returns the exit code."""
        # uvicorn takes these signals over while it serves and raises them again afterwards, when we clean up.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._request_exit())
        write_registration(self._files.registration, self._registration)
        try:
            asyncio.run(self._serve(listener))
        finally:
            self._withdraw()
        return 0 if self.runtime.error is None else 1

    async def _serve(self, listener: socket.socket) -> None:
        life = asyncio.create_task(self._live())
        try:
            await self._server.serve(sockets=[listener])
        finally:
            life.cancel()
            await asyncio.wait([life])
            await self.runtime.aclose()

    async def _live(self) -> None:
        """Load, tell how that went, and end the service when it is idle."""
        self._announce()
        await self.runtime.load()
        error = self.runtime.error
        if error is not None:
            logger.error("%s", error)
            failed = replace(self._registration, error=str(error), error_kind=type(error).__name__)
            write_registration(self._files.registration, failed)
        else:
            self._announce_ready()
            await self._rehearse()
            await self.runtime.wait_until_idle()
            logger.info("idle, exiting")
        self._request_exit()

    async def _rehearse(self) -> None:
        """Once on a machine, measure how long a suggestion of this model takes."""
        loaded = self.runtime.loaded
        assert loaded is not None
        with self.runtime.use():
            took_ms = await measured_suggestion(self.runtime.config.engine, loaded)
        if took_ms is not None:
            logger.info("a suggestion of 12 tokens after a keystroke takes %.0f ms", took_ms)

    def _withdraw(self) -> None:
        if self.runtime.error is None:
            self._files.registration.unlink(missing_ok=True)

    def _request_exit(self) -> None:
        self._server.should_exit = True

    def _announce(self) -> None:
        registration = self._registration
        logger.info("Midline engine %s listens on %s", __version__, registration.address)
        if registration.is_foreground:
            logger.info("send the header  Authorization: Bearer %s", registration.token)
            logger.info("set %s to choose the token; Ctrl-C ends the engine", TOKEN_VARIABLE)
        logger.info("loading %s", registration.model)

    def _announce_ready(self) -> None:
        loaded = self.runtime.loaded
        assert loaded is not None
        info = loaded.info
        logger.info(
            "ready: %s, %s (%s) on %s with %d threads, context %d tokens, %.0f MB, loaded in %.1f s",
            info.model,
            info.dtype,
            info.kernels,
            info.device,
            info.num_threads,
            info.context_tokens,
            info.memory_bytes / 1e6,
            info.load_s,
        )


def load_engine(config: EngineConfig) -> LoadedEngine:
    """Load the engine; blocks for seconds. Raises ``ModelError``."""
    from engine.checkpoint.store import resolve_model

    for name in filter(None, (config.model, config.draft_model)):
        resolve_model(name)  # a model that is not there is told before torch is imported
    # How long idle compute threads spin. By default long enough to starve the other one when a core is busy with
    # something else: a decode step then takes 172 ms, and 102 ms with this; 64 and 60 ms on an idle machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from engine.async_engine import AsyncEngine
    from engine.engine import Engine

    engine = Engine.load(config)
    return LoadedEngine(engine.info, AsyncEngine(engine))


def _lock(files: ServiceFiles) -> contextlib.AbstractContextManager[object]:
    """The lock, acquired; waits for a predecessor on its way out. Raises ``filelock.Timeout``."""
    lock = filelock.FileLock(files.lock)
    deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        with contextlib.suppress(filelock.Timeout):
            return lock.acquire(timeout=0.1)
        other = read_registration(files.registration)
        is_served = other is not None and not other.error and is_process_alive(other.pid)
        if is_served or time.monotonic() > deadline_s:
            raise filelock.Timeout(str(files.lock))


@contextlib.contextmanager
def _listening(options: Options, files: ServiceFiles) -> Iterator[tuple[socket.socket, str]]:
    if options.port is not None or (options.socket_path is None and not HAS_UNIX_SOCKETS):
        listener = listen_tcp(options.host, options.port or 0)
        with contextlib.closing(listener):
            yield listener, tcp_url(listener)
        return
    path = options.socket_path or files.socket()
    listener = listen_unix(path)
    try:
        with contextlib.closing(listener):
            yield listener, f"{UNIX_PREFIX}{path}"
    finally:
        path.unlink(missing_ok=True)


def _parse(arguments: list[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m engine.service", description="Midline's inference service.")
    parser.add_argument("--settings", default="{}", help="ServiceConfig as JSON")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int)
    parser.add_argument("--socket", type=Path, dest="socket_path")
    parser.add_argument("--foreground", action="store_true", help="a person watches: tell address and token")
    values = parser.parse_args(arguments)
    converter = cattrs.Converter(forbid_extra_keys=True)
    try:
        config = converter.structure(json.loads(values.settings), ServiceConfig)
    except (ValueError, cattrs.BaseValidationError) as error:
        reasons = cattrs.transform_error(error) if isinstance(error, cattrs.BaseValidationError) else [str(error)]
        raise ConfigError(f"--settings: {'; '.join(reasons)}") from None
    check(config)
    return Options(
        config=replace(config, engine=normalised(settled(config.engine))),
        host=values.host,
        port=values.port,
        socket_path=values.socket_path,
        is_foreground=values.foreground,
    )


if __name__ == "__main__":
    sys.exit(main())
