"""Finds the running service or starts one in the background. Light: imports no torch.

It knows processes and files, not what a completion is. Nothing here blocks the event loop: files and
processes are handled in threads, and nobody waits for a model to load.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import engine
from engine.config import ServiceConfig
from engine.errors import ServiceError
from engine.service.client import HealthReport, ServiceClient, ServiceState
from engine.service.registration import (
    EXIT_ALREADY_RUNNING,
    Registration,
    ServiceFiles,
    is_process_alive,
    last_log_line,
    normalised,
    read_registration,
)

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.03
_MAX_LOG_BYTES = 1_000_000


class Backoff:
    """How long to wait before the next start: 1, 2, 4 … 30 seconds, from 1 again after a stable run."""

    MAX_DELAY_S = 30.0
    STABLE_S = 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.message = ""
        """Why the last run ended; empty when nothing is wrong."""
        self._clock = clock
        self._num_failures = 0
        self._not_before_s = 0.0

    def record_failure(self, message: str, lifetime_s: float) -> None:
        """A run ended by itself, after living this long. The end of a stable run delays nothing."""
        if lifetime_s >= self.STABLE_S:
            self.forget()
            return
        self._num_failures += 1
        delay_s = min(2.0 ** min(self._num_failures - 1, 10), self.MAX_DELAY_S)
        self._not_before_s = self._clock() + delay_s
        self.message = message

    def forget(self) -> None:
        """All is well, or a person asked to start again: no waiting."""
        self.message = ""
        self._num_failures = 0
        self._not_before_s = 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds until the next start is allowed."""
        return max(0.0, self._not_before_s - self._clock())


class ServiceLauncher:
    """Gives clients of the one service for these settings, starting and restarting it as needed.

    Use it on one event loop. Cancelling a caller never cancels a start: the next caller finds it further on.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.config = replace(config, engine=normalised(config.engine))
        self.files = ServiceFiles.for_engine(self.config.engine)
        self._backoff = Backoff()
        self._client: ServiceClient | None = None
        self._attached: Registration | None = None
        self._connecting: asyncio.Task[ServiceClient] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._has_crashed = False

    async def connect(self) -> ServiceClient:
        """A client of a service that accepts connections; its model may still be loading.

        The client belongs to the launcher: do not close it. Costs microseconds while the service lives.
        Raises ``ServiceError`` with the reason, also while waiting to restart a service that keeps failing.
        """
        if self._client is not None and not self._client.is_broken and self._is_attached_alive():
            return self._client
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(_mark_error_as_seen)
        return await asyncio.shield(self._connecting)

    @property
    def retry_in_s(self) -> float:
        """Seconds until a service that has crashed may be started again.

        0 when nothing has to be waited for, or waiting is of no use: its model cannot be loaded.
        """
        return self._backoff.remaining_s if self._has_crashed else 0.0

    async def status(self) -> HealthReport:
        """What the service is doing now. Starts nothing and never raises for a service that is not there."""
        await _import_httpx()
        for _ in range(2):  # it may end, and write why, between our reading and our asking
            registration = await asyncio.to_thread(read_registration, self.files.registration)
            if registration is None or registration.error or not is_process_alive(registration.pid):
                break
            async with contextlib.aclosing(ServiceClient(registration.address, registration.token)) as client:
                with contextlib.suppress(ServiceError):
                    return await client.health()
        return await asyncio.to_thread(self._describe_absence, registration)

    async def stop(self) -> None:
        """End the service in the background and forget failures: the next ``connect`` starts afresh.

        Raises ``ServiceError`` for one that a person runs in a terminal.
        """
        if self._connecting is not None:
            await asyncio.wait([self._connecting])  # what it is starting should end too
        self._backoff.forget()
        registration = await asyncio.to_thread(read_registration, self.files.registration)
        if registration is not None:
            _leave_to_its_user(registration)
        await self._detach()
        client = await _identify(registration)
        if client is not None and registration is not None:
            await self._retire(registration, client)

    async def aclose(self) -> None:
        """Close connections. The service lives on for others until it is idle."""
        if self._connecting is not None and not self._connecting.done():
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        await self._detach()

    async def _connect(self) -> ServiceClient:
        await _import_httpx()
        await self._note_end()
        client = await self._attach()
        if client is None:
            if self._backoff.remaining_s > 0:
                outlook = f" (next attempt in {self.retry_in_s:.0f} s)" if self._has_crashed else ""
                raise ServiceError(self._backoff.message + outlook)
            client = await self._start()
        return client

    def _is_attached_alive(self) -> bool:
        return self._attached is not None and is_process_alive(self._attached.pid)

    async def _note_end(self) -> None:
        """If the service we were attached to is gone, learn whether it failed or left in good order."""
        former, is_alive = self._attached, self._is_attached_alive()
        lifetime_s = time.time() - former.started_at_s if former else 0.0
        await self._detach()
        if former is None or is_alive:
            return
        registration = await asyncio.to_thread(read_registration, self.files.registration)
        if registration is None or registration.pid != former.pid:  # it removes the file when it ends as it should
            self._backoff.forget()
            return
        self._has_crashed = not registration.error
        message = await asyncio.to_thread(self._describe_end, former.pid)
        self._backoff.record_failure(message, lifetime_s)

    async def _attach(self) -> ServiceClient | None:
        """A client of the service that runs already, or None. Retires one of an older version."""
        registration = await asyncio.to_thread(read_registration, self.files.registration)
        is_older = registration is not None and _version_key(registration.version) < _version_key(engine.__version__)
        if registration is not None and is_older:
            _leave_to_its_user(registration)
        client = await _identify(registration)
        if client is None or registration is None:
            return None
        if is_older:
            await self._retire(registration, client)
            return None
        self._client, self._attached = client, registration
        return client

    async def _retire(self, registration: Registration, client: ServiceClient) -> None:
        """Ask a service to exit and wait until it has; insist after a while. Raises ``ServiceError``."""
        await client.shutdown()
        await client.aclose()
        if await self._has_ended(registration):
            return
        with contextlib.suppress(OSError):
            os.kill(registration.pid, signal.SIGTERM)
        if not await self._has_ended(registration):
            raise ServiceError(f"the engine (process {registration.pid}) does not stop; end that process")

    async def _has_ended(self, registration: Registration) -> bool:
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        while time.monotonic() < deadline_s:
            current = await asyncio.to_thread(read_registration, self.files.registration)
            is_withdrawn = current is None or current.pid != registration.pid
            if not is_process_alive(registration.pid) or (os.name == "nt" and is_withdrawn):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _detach(self) -> None:
        client, self._client, self._attached = self._client, None, None
        if client is not None:
            await client.aclose()

    async def _start(self) -> ServiceClient:
        process = await asyncio.to_thread(self._spawn)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            has_failed = process.returncode not in (None, EXIT_ALREADY_RUNNING)  # asked before looking around
            client = await self._attach()
            if client is not None:
                return client
            if has_failed:
                break
            await asyncio.sleep(_POLL_S)
        registration = await asyncio.to_thread(read_registration, self.files.registration)
        self._has_crashed = registration is None or registration.pid != process.pid or not registration.error
        message = await asyncio.to_thread(self._describe_end, process.pid)
        self._backoff.record_failure(message, lifetime_s=0.0)
        raise ServiceError(message)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        """Start the service in a session of its own, with its output in the log and none of our streams."""
        if importlib.util.find_spec("torch") is None:
            raise ServiceError("the engine is not installed; in Midline's folder run: pip install '.[local]'")
        self.files.create_folder()
        log = self.files.log
        mode = "wb" if log.exists() and log.stat().st_size > _MAX_LOG_BYTES else "ab"
        creationflags = 0
        if sys.platform == "win32":
            creationflags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        try:
            with open(log, mode, opener=_open_private) as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "engine.service", "--settings", json.dumps(asdict(self.config))],
                    cwd=Path(engine.__file__).parents[1],  # never the user's folder: -m imports from it
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    creationflags=creationflags,
                )
        except OSError as error:
            raise ServiceError(f"cannot start the engine: {error}") from error
        threading.Thread(target=process.wait, name="engine-reaper", daemon=True).start()
        self._process = process
        return process

    def _describe_absence(self, registration: Registration | None) -> HealthReport:
        if registration is not None and registration.error:
            is_missing = registration.error_kind == "ModelNotDownloadedError"
            state = ServiceState.MODEL_MISSING if is_missing else ServiceState.FAILED
            return HealthReport(state, registration.error, registration.model)
        model = self.config.engine.model
        if self._backoff.message:
            return HealthReport(ServiceState.FAILED, self._backoff.message, model)
        if registration is None:
            return HealthReport(ServiceState.STOPPED, "", model)
        is_hung = is_process_alive(registration.pid)
        state = ServiceState.FAILED if is_hung else ServiceState.STOPPED
        return HealthReport(state, self._describe_end(registration.pid), model)

    def _describe_end(self, pid: int) -> str:
        """Why the service with this process id is not there, in one line."""
        registration = read_registration(self.files.registration)
        if registration is not None and registration.pid == pid and registration.error:
            return registration.error
        if registration is not None and not registration.error and is_process_alive(registration.pid):
            return f"the engine (process {registration.pid}) does not answer; end that process"
        code = self._process.returncode if self._process is not None and self._process.pid == pid else None
        if code == EXIT_ALREADY_RUNNING:
            return "another process started the engine, and it did not come up; see its log"
        how = "ended unexpectedly" if code is None or code >= 0 else f"was killed by signal {-code}"
        line = last_log_line(self.files.log)
        return f"the engine {how}; the last line of its log {self.files.log}: {line}"


async def _import_httpx() -> None:
    """In a thread: it takes 0.2 s, which the event loop should not spend."""
    await asyncio.to_thread(importlib.import_module, "httpx")


def _is_serving(registration: Registration) -> bool:
    return not registration.error and is_process_alive(registration.pid)


def _leave_to_its_user(registration: Registration) -> None:
    """An engine that a person runs is not ours to end. Raises ``ServiceError``."""
    if registration.is_foreground and _is_serving(registration):
        raise ServiceError(
            f"the engine for these settings runs in a terminal, at {registration.address}"
            f" (process {registration.pid}, version {registration.version}); end it there"
        )


async def _identify(registration: Registration | None) -> ServiceClient | None:
    """A client of the registered service, or None: it ended, or its pid or port is another process's now."""
    if registration is None or not _is_serving(registration):
        return None
    client = ServiceClient(registration.address, registration.token)
    try:
        report = await client.health()
    except ServiceError:
        report = None
    if report is not None and report.pid == registration.pid:
        return client
    await client.aclose()
    return None


def _version_key(version: str) -> tuple[int, ...]:
    """A newer service is used, not replaced: two versions must not end each other's service in turns."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _mark_error_as_seen(task: "asyncio.Task[ServiceClient]") -> None:
    """Every caller may have been cancelled; asyncio would complain about an error that nobody fetched."""
    if not task.cancelled():
        task.exception()
