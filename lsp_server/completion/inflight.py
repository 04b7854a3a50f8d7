"""Newest wins: at most one running completion per document, and the only place that cancels one.

It knows keys and coroutines, no documents, no editor and no engine.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from lsp_server.completion.request import EmptyReason, Suggestion

_logger = logging.getLogger(__name__)


class InFlight:
    """Runs completions; each caller gets exactly one answer, or its own cancellation."""

    def __init__(self) -> None:
        # document -> resolved with the reason when its newest completion is no longer wanted
        self._ends: dict[str, asyncio.Future[EmptyReason]] = {}
        self._tasks: set[asyncio.Task[Suggestion]] = set()

    async def run(self, key: str, work: Coroutine[Any, Any, Suggestion]) -> Suggestion:
        """The outcome of ``work``, or an empty suggestion at once when something ends it before.

        An end that comes while the outcome is on its way wins: the caller never gets a stale text.
        Cancelling the caller cancels the work. Errors of ``work`` are raised here.
        """
        self.end(key, EmptyReason.SUPERSEDED)
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        end = self._ends[key] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()  # does nothing to one that is done
            if self._ends.get(key) is end:
                del self._ends[key]
        return Suggestion("", end.result()) if end.done() else task.result()

    def end(self, key: str, reason: EmptyReason) -> None:
        """End the running completion of a document, if there is one. Its caller is answered with ``reason``."""
        end = self._ends.pop(key, None)
        if end is not None and not end.done():
            end.set_result(reason)

    def end_all(self, reason: EmptyReason) -> None:
        """End the running completions of all documents."""
        for key in list(self._ends):
            self.end(key, reason)

    async def aclose(self) -> None:
        """End all; returns when the work has let go of what it held."""
        self.end_all(EmptyReason.CANCELLED)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, task: asyncio.Task[Suggestion]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.debug("a completion ended with %s", type(error).__name__)  # its caller has it, if still there
