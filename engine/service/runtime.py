"""The engine as the service sees it: loading, ready or failed, and how long unused. Light: imports no torch.

It knows no HTTP. How to load is passed in, so that only the process entry knows where the engine comes from.
"""

import asyncio
import contextlib
import logging
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from engine.config import EngineConfig, ServiceConfig
from engine.errors import MidlineError, ServiceError
from engine.info import EngineInfo
from engine.observer import Observer
from engine.request import CompletionRequest, Delta

logger = logging.getLogger(__name__)


class ServingEngine(Protocol):
    """What the service needs of ``AsyncEngine``."""

    @property
    def num_running(self) -> int:
        """Requests being computed."""

    @property
    def num_waiting(self) -> int:
        """Requests waiting for their turn."""

    @property
    def kv_use(self) -> tuple[int, int, int]:
        """Blocks that running requests hold, that are kept for later ones, and all there are."""

    def observe(self, observer: Observer) -> None:
        """Have everything counted from now on."""

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        """Yield deltas, the last finished; closing it cancels. Raises ``RequestError`` at the first step."""

    async def aclose(self) -> None:
        """Cancel everything and stop computing."""


@dataclass(frozen=True)
class LoadedEngine:
    """An engine and what it says about itself."""

    info: EngineInfo
    engine: ServingEngine


class Runtime:
    """Owns the engine of one service from loading to closing. Use it on one event loop."""

    def __init__(self, config: ServiceConfig, load: Callable[[EngineConfig], LoadedEngine]) -> None:
        """``load`` runs in a thread and may block; it raises ``MidlineError`` for what a user can mend."""
        self.config = config
        self.loaded: LoadedEngine | None = None
        self.error: MidlineError | None = None
        self.started_at_s = time.time()
        self._load = load
        self._loading_thread: threading.Thread | None = None
        self._observer: Observer | None = None
        self._num_users = 0
        self._unused_since_s = time.monotonic()

    @property
    def model(self) -> str:
        """The model's name: as loaded, or as asked for until then."""
        return self.loaded.info.model if self.loaded else self.config.engine.model

    @property
    def is_loading_thread_alive(self) -> bool:
        """True while a load is under way, which nothing can interrupt."""
        return self._loading_thread is not None and self._loading_thread.is_alive()

    def num_running(self) -> int:
        """Requests being computed."""
        return self.loaded.engine.num_running if self.loaded else 0

    def num_waiting(self) -> int:
        """Requests waiting for their turn."""
        return self.loaded.engine.num_waiting if self.loaded else 0

    def kv_use(self) -> tuple[int, int, int]:
        """Blocks of keys and values in use, kept, and all."""
        return self.loaded.engine.kv_use if self.loaded else (0, 0, 0)

    def observe(self, observer: Observer) -> None:
        """Have the engine counted, once it is loaded."""
        self._observer = observer

    async def load(self) -> None:
        """Load in a thread; afterwards either ``loaded`` or ``error`` is set."""
        result: Future[LoadedEngine] = Future()

        def work() -> None:
            try:
                result.set_result(self._load(self.config.engine))
            except BaseException as error:  # noqa: BLE001 - handed to the event loop, which sorts it
                result.set_exception(error)

        with self.use():
            # A daemon, unlike an executor's threads: the process must be able to exit in the middle of it.
            self._loading_thread = threading.Thread(target=work, name="engine-loader", daemon=True)
            self._loading_thread.start()
            try:
                self.loaded = await asyncio.wrap_future(result)
                if self._observer is not None:
                    self.loaded.engine.observe(self._observer)
            except MidlineError as error:
                self.error = error
            except Exception as error:  # noqa: BLE001 - out of memory, a broken torch …: one line for the user
                logger.error("loading failed\n%s", "".join(traceback.format_exception(error)))
                lines = str(error).splitlines() or [""]
                self.error = ServiceError(f"loading {self.model} failed: {type(error).__name__}: {lines[0]}")

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """While a user is inside, the service is not idle."""
        self._num_users += 1
        try:
            yield
        finally:
            self._num_users -= 1
            self._unused_since_s = time.monotonic()

    async def wait_until_idle(self) -> None:
        """Return once the service has been unused for ``idle_exit_s``; never when that is 0."""
        limit_s = self.config.idle_exit_s
        while limit_s <= 0 or self._remaining_s(limit_s) > 0:
            await asyncio.sleep(3600.0 if limit_s <= 0 else max(0.05, self._remaining_s(limit_s)))

    async def aclose(self) -> None:
        """Cancel all work and release the engine."""
        if self.loaded is not None:
            await self.loaded.engine.aclose()

    def _remaining_s(self, limit_s: float) -> float:
        return limit_s if self._num_users else self._unused_since_s + limit_s - time.monotonic()
