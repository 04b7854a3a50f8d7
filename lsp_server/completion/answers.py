"""What the model has said lately about a document, and what it is saying: typed text that agrees needs no new request.

Under greedy decoding the answer after a part of an answer has been typed is the rest of it, so taking that rest is
exact, as long as it is known where the new suggestion ends.
"""

import asyncio
import contextlib
import time
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass, field

from engine.errors import MidlineError
from engine.request import CompletionRequest, Finished, FinishReason, Usage
from lsp_server.backends.base import Backend
from lsp_server.completion.ablation import is_off
from lsp_server.completion.decide import Shape
from lsp_server.postprocess import Hole, block_end

_COMPLETE = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TIME)
_NUM_KEPT = 8
_HANDOVER_S = 0.1
_SPACE = (" ", "\t")
_GRACE_S = 0.3
"""A generation that nobody waits for goes on so long: the next keystroke may agree with it, or need its prompt."""


@dataclass(eq=False)
class Answer:
    """A generation, perhaps still running. ``text`` is raw: what the model said, before any filter."""

    before: str
    """All text before the cursor when it was asked."""
    after: str
    """``Anchor.after``"""
    shape: Shape
    model: str = ""
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    started_at_s: float = field(default_factory=time.perf_counter)
    first_token_ms: float | None = None
    finished: Finished | None = None
    error: MidlineError | None = None
    _task: "asyncio.Task[None] | None" = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _num_waiting: int = 0
    _is_stopped: bool = False

    @property
    def is_running(self) -> bool:
        """More text may come."""
        return self._task is not None and not self._task.done() and not self._is_stopped

    @property
    def is_complete(self) -> bool:
        """Asking the same again would give the same: nobody has broken it off."""
        return self.finished is not None and self.finished.reason in _COMPLETE

    @property
    def has_ended(self) -> bool:
        """The model has come to an end of its own; it was not cut by a limit."""
        return self.finished is not None and self.finished.reason is FinishReason.STOP

    def elapsed_ms(self) -> float:
        """Milliseconds since it was asked."""
        return (time.perf_counter() - self.started_at_s) * 1000

    def start(self, backend: Backend, request: CompletionRequest) -> None:
        """Begin to generate."""
        self._task = asyncio.ensure_future(self._run(backend, request))

    async def aclose(self) -> None:
        """Stop generating; returns when the backend has let go."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(asyncio.gather(self._task, return_exceptions=True))

    def rest(self, before: str, after: str) -> str | None:
        """What it still has to say at a cursor; None if something else was typed."""
        if after != self.after or not before.startswith(self.before):
            return None
        typed = before[len(self.before) :]
        if self.text.startswith(typed):
            rest = self.text[len(typed) :]
            # half a run of white space is other tokens than the whole one: from there the model may go on otherwise
            return None if typed[-1:] in _SPACE and rest[:1] in _SPACE else rest
        # one that has said nothing yet is no guess at all
        is_ahead = bool(self.text) and self.is_running and typed.startswith(self.text)
        return "" if is_ahead else None

    def is_wrong(self, before: str, after: str) -> bool:
        """Whether it says something else than what was typed. One that has said nothing is not wrong."""
        return bool(self.text) and self.rest(before, after) is None

    def covers(self, hole: Hole, after: str) -> bool:
        """Whether it has said by now all that the suggestion in ``hole`` needs."""
        rest = self.rest(hole.situation.prefix, after)
        num_typed = len(hole.situation.prefix) - len(self.before)
        return rest is not None and num_typed <= len(self.text) and self._is_enough(rest, hole)

    def _is_enough(self, rest: str, hole: Hole) -> bool:
        """Whether more text would change nothing of the suggestion in ``hole``."""
        if self.is_complete and self.before == hole.situation.prefix and self.shape == hole.shape:
            return True  # asked again
        if not hole.shape.is_block:
            return "\n" in rest or self.has_ended
        # a line that is too far out for the block that was asked for is so for one that is further in
        ends_as_well = self.shape.is_block and self.shape.min_indent <= hole.shape.min_indent
        return block_end(rest, hole) is not None or (self.has_ended and ends_as_well)

    async def wait_for_rest(self, hole: Hole, after: str) -> str | None:
        """The rest for a cursor, once it is enough or no more comes; None if what comes is not what was typed.

        Raises what ended the generation early. Whoever stops waiting does not stop it, unless nobody else comes.
        """
        before = hole.situation.prefix
        self._num_waiting += 1
        try:
            while True:
                self._changed.clear()
                rest = self.rest(before, after)
                if rest is None or self.covers(hole, after):
                    self.stop()
                    return rest
                if not self.is_running:
                    if self.error is not None:
                        raise self.error
                    return None  # a limit has cut it too early
                await self._changed.wait()
        finally:
            self._num_waiting -= 1
            if not self._num_waiting and self.is_running:
                asyncio.get_running_loop().call_later(_GRACE_S, self._stop_unless_awaited)

    async def _run(self, backend: Backend, request: CompletionRequest) -> None:
        try:
            async with aclosing(backend.stream(request)) as deltas:
                async for delta in deltas:
                    if self.first_token_ms is None and (delta.text or delta.token_ids):
                        self.first_token_ms = self.elapsed_ms()
                    self.text += delta.text
                    self.usage, self.finished = delta.usage, delta.finished
                    self._changed.set()
                    await asyncio.sleep(0)  # whoever waits may have heard enough
        except MidlineError as error:
            self.error = error
        finally:
            asyncio.get_running_loop().call_soon(self._changed.set)  # once the task is done

    def stop(self) -> None:
        """Stop generating."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()  # does nothing to one that is done

    def _stop_unless_awaited(self) -> None:
        if not self._num_waiting:
            self.stop()


class Answers:
    """The last answers of one document."""

    def __init__(self) -> None:
        self._kept: deque[Answer] = deque(maxlen=_NUM_KEPT)

    @property
    def newest(self) -> Answer | None:
        """The one that was asked last."""
        return self._kept[-1] if self._kept else None

    def find(self, hole: Hole, after: str) -> Answer | None:
        """The newest that gives the suggestion in ``hole``, or is about to."""
        before = hole.situation.prefix
        for answer in reversed(() if is_off("typethrough") else self._kept):
            is_about_to = answer.is_running and answer.rest(before, after) is not None
            if is_about_to or answer.covers(hole, after):
                return answer
        return None

    def add(self, answer: Answer, backend: Backend, request: CompletionRequest) -> None:
        """Begin a new one. It supersedes what is running: where the new prompt goes on from the old one, the engine
        goes on with what it is computing, so the old request must not be closed before the new one has arrived.
        """
        for former in self._kept:
            if former.is_running and not is_off("cancel"):
                asyncio.get_running_loop().call_later(_HANDOVER_S, former.stop)
        self._kept.append(answer)
        answer.start(backend, request)

    def add_beside(self, answer: Answer, backend: Backend, request: CompletionRequest) -> None:
        """Begin one that nobody has asked for yet; it disturbs no other."""
        self._kept.append(answer)
        answer.start(backend, request)

    def draft(self, before: str, after: str) -> str:
        """What may come next, though it is not certain: the rest of an answer that was cut."""
        for answer in reversed(self._kept):
            if rest := answer.rest(before, after):
                return rest
        return ""

    def stop_wrong(self, before: str, after: str) -> None:
        """Stop at once what does not agree with what was typed."""
        for answer in self._kept:
            if answer.is_wrong(before, after) and not is_off("cancel"):
                answer.stop()

    def stop(self) -> None:
        """Stop whatever is running."""
        for answer in self._kept:
            answer.stop()

    async def aclose(self) -> None:
        """Stop what is running; returns when the backend has let go."""
        await asyncio.gather(*(answer.aclose() for answer in self._kept))
