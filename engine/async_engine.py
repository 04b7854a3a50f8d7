"""``AsyncEngine``: the loop on a thread of its own, and streams for those who wait."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator

from engine.engine import Engine
from engine.errors import ServiceError
from engine.observer import Observer
from engine.request import CompletionRequest, Delta, Lane

_logger = logging.getLogger(__name__)
_IDLE_CHECK_S = 1.0


class AsyncEngine:
    """Streams for any number of requests at once.

    One thread computes: two parallel regions on the same cores would only slow each other down.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = engine.loop
        self._wake = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._compute, name="midline-compute", daemon=True)
        self._thread.start()

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return sum(self._loop.scheduler.num_running(lane) for lane in Lane)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return self._loop.num_waiting

    @property
    def kv_use(self) -> tuple[int, int, int]:
        """Blocks that running requests hold, that are kept for later ones, and all there are."""
        cache = self.engine.cache
        return cache.num_used, cache.num_cached, cache.pool.num_blocks

    def observe(self, observer: Observer) -> None:
        """Have everything counted from now on."""
        self._loop.observer = observer

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        """Yield a request's deltas; the last one carries ``finished``.

        Closing the generator, or cancelling the task that reads it, ends the work before the next layer, or drops
        the request from the queue. Raises ``RequestError`` for an unusable prompt, ``ServiceError`` after ``aclose``.
        """
        if self._is_closing:
            raise ServiceError("the engine is closed")
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Delta | Exception] = asyncio.Queue()

        def publish(event: Delta | Exception) -> None:
            # a reader whose loop has ended needs no event any more
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(events.put_nowait, event)

        job = self.engine.prepare(request, publish, publish)
        self._loop.submit(job)
        self._notify()
        has_ended = False
        try:
            while not has_ended:
                event = await events.get()
                has_ended = isinstance(event, Exception) or event.finished is not None
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            if not has_ended:
                self._loop.cancel(job)
                self._notify()

    async def aclose(self) -> None:
        """Cancel all requests and wait for the compute thread to end."""
        self._is_closing = True
        self._loop.stop()
        self._notify()
        await asyncio.to_thread(self._thread.join)

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _compute(self) -> None:
        while not self._is_closing:
            try:
                if self._loop.has_work:
                    self._loop.step()
                else:
                    self._rest()
            except Exception as error:  # noqa: BLE001 - each request raises it
                _logger.error("the engine's loop broke: %s", type(error).__name__)
                self._loop.fail_all(error)
        self._loop.cancel_all()

    def _rest(self) -> None:
        """Wait for work; after a while check once that nothing has been lost."""
        with self._wake:
            self._wake.wait_for(self._must_go_on, _IDLE_CHECK_S)
        if not self._must_go_on():
            self._check()
        with self._wake:
            self._wake.wait_for(self._must_go_on)

    def _must_go_on(self) -> bool:
        return self._loop.has_work or self._is_closing

    def _check(self) -> None:
        try:
            self._loop.check_idle()
        except AssertionError as error:
            _logger.error("the cache has lost count (%s); restart the engine when it slows down", error)
