"""Work with an event loop and a thread of its own, so that the loop that has begun it answers at all times."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Background(Generic[_T]):
    """A coroutine that runs elsewhere; to be made in a running loop. The process does not wait for it to end."""

    def __init__(self, work: Coroutine[Any, Any, _T]) -> None:
        self.ended: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        """Its outcome; cancelled if it was. Shield it where the one who waits may be cancelled."""
        self._home = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work)
        self._is_cancelled = False
        threading.Thread(target=self._drive, name="bulk", daemon=True).start()

    def cancel(self) -> None:
        """Let it end; what it cleans up then is not disturbed by further calls."""
        if not self._is_cancelled:
            self._is_cancelled = True
            with contextlib.suppress(RuntimeError):  # it has ended at this moment
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _drive(self) -> None:
        tell: Callable[[], object]
        try:
            tell = partial(self.ended.set_result, self._loop.run_until_complete(self._task))
        except asyncio.CancelledError:
            tell = self.ended.cancel
        except BaseException as error:  # noqa: BLE001 -- handed to whoever waits
            tell = partial(self.ended.set_exception, error)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
        with contextlib.suppress(RuntimeError):  # nobody waits: the process is about to end
            self._home.call_soon_threadsafe(tell)
