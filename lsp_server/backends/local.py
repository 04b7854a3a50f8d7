"""The local engine: its shared service is started on demand and followed until its model is loaded.

It knows when the service can be used, not how it is found or started (``engine.service.launcher``). Bringing it up
runs in a task of its own: a request that is cancelled never cancels a model that loads.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from engine.checkpoint.store import resolve_model
from engine.config import AUTO_MODEL, ServiceConfig
from engine.errors import ModelError, ModelNotDownloadedError, ServiceError
from engine.machine.auto import settled
from engine.request import CompletionRequest, Delta
from engine.service.client import ServiceClient, ServiceState
from engine.service.launcher import ServiceLauncher
from lsp_server.backends.base import BackendState, BackendStatus

_PATIENCE_S = 0.05  # a running service answers within this; a starting one is not waited for
_POLL_S = 0.1
_MAX_RESTARTS = 3

_STATE_OF_SERVICE = {
    ServiceState.STOPPED: BackendState.STOPPED,
    ServiceState.LOADING: BackendState.LOADING,
    ServiceState.READY: BackendState.READY,
    ServiceState.MODEL_MISSING: BackendState.MODEL_MISSING,
    ServiceState.FAILED: BackendState.FAILED,
}


class LocalBackend:
    """A ``Backend`` over the service for one set of engine settings."""

    def __init__(self, config: ServiceConfig, on_status: Callable[[BackendStatus], None] | None = None) -> None:
        """``on_status`` is called on the event loop whenever the status has changed."""
        self._config = config
        self._launcher: ServiceLauncher | None = None
        """None until it is known what ``auto`` stands for."""
        self._model = config.engine.model
        self._on_status = on_status
        self._status = BackendStatus(BackendState.STOPPED, self._model)
        self._ready_client: ServiceClient | None = None
        self._bringing_up: asyncio.Task[None] | None = None

    @property
    def status(self) -> BackendStatus:
        """The last known state; costs nothing."""
        return self._status

    async def ensure_ready(self) -> BackendStatus:
        """Start whatever is needed, without waiting for a model to load; never raises for a user error."""
        if self._bringing_up is None or self._bringing_up.done():
            self._bringing_up = asyncio.create_task(self._bring_up())
        await asyncio.wait((self._bringing_up,), timeout=_PATIENCE_S)
        if self._ready_client is not None and not self._bringing_up.done():
            self._report(BackendState.STARTING)  # the service that was ready has ended
        return self._status

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        """Yield deltas; see ``Backend.stream``."""
        if self._ready_client is None:
            raise ServiceError("the engine is not ready")
        async with aclosing(self._ready_client.stream(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def restart(self) -> BackendStatus:
        """Stop the service, for all who share it, and start it again."""
        await self._abandon_start()
        try:
            await self._stop_service()
        except ServiceError as error:
            self._report(BackendState.FAILED, str(error))
            return self._status
        self._report(BackendState.STOPPED)
        return await self.ensure_ready()

    async def aclose(self) -> None:
        """Release connections; the service lives on for others."""
        await self._abandon_start()
        if self._launcher is not None:
            await self._launcher.aclose()

    async def _bring_up(self) -> None:
        try:
            launcher = self._launcher or await self._settle()
            if self._ready_client is None:
                resolve_model(self._model)
                if self._status.state is not BackendState.FAILED:  # that stays until a new attempt has come further
                    self._report(BackendState.STARTING)
            await self._follow_and_restart(launcher)
        except ModelNotDownloadedError as error:
            self._report(BackendState.MODEL_MISSING, str(error))
        except (ModelError, ServiceError) as error:
            self._report(BackendState.FAILED, str(error))

    async def _settle(self) -> ServiceLauncher:
        """A launcher for what ``auto`` stands for; this may measure the machine, which takes seconds, once.

        Raises ``ModelNotDownloadedError`` when none of its models is here.
        """
        if self._config.engine.model == AUTO_MODEL:
            self._report(BackendState.STARTING)
        config = replace(self._config, engine=await asyncio.to_thread(settled, self._config.engine))
        self._model = config.engine.model
        if self._model == AUTO_MODEL:
            resolve_model(self._model)
        self._launcher = ServiceLauncher(config)
        return self._launcher

    async def _stop_service(self) -> None:
        """Afterwards ``auto`` is settled anew: there may be a better model by now. Raises ``ServiceError``."""
        with contextlib.suppress(ModelNotDownloadedError):  # then nothing runs, and who starts it will tell
            launcher = self._launcher or await self._settle()
            await launcher.stop()
            await launcher.aclose()
        self._launcher = None

    async def _follow_and_restart(self, launcher: ServiceLauncher) -> None:
        """An engine that has crashed is started again a few times, after the launcher's pause."""
        for _ in range(_MAX_RESTARTS):
            try:
                return await self._follow(launcher)
            except ServiceError as error:
                if launcher.retry_in_s <= 0:
                    raise
                self._report(BackendState.STARTING, str(error))
                await asyncio.sleep(launcher.retry_in_s)
        await self._follow(launcher)

    async def _follow(self, launcher: ServiceLauncher) -> None:
        """Until the engine is ready, or has told why it will not be. Raises ``ServiceError`` when it dies."""
        client = await launcher.connect()
        while client is not self._ready_client:
            try:
                report = await client.health()
            except ServiceError:
                client = await launcher.connect()  # which finds out why, and raises that
                continue
            state = _STATE_OF_SERVICE[report.state]
            if state is BackendState.READY:
                self._ready_client = client
            self._report(state, report.message)
            if state is not BackendState.LOADING:
                return
            await asyncio.sleep(_POLL_S)

    def _report(self, state: BackendState, message: str = "") -> None:
        status = BackendStatus(state, self._model, message)
        if state is not BackendState.READY:
            self._ready_client = None
        if status != self._status:
            self._status = status
            if self._on_status is not None:
                self._on_status(status)

    async def _abandon_start(self) -> None:
        if self._bringing_up is not None:
            self._bringing_up.cancel()
            await asyncio.wait((self._bringing_up,))
