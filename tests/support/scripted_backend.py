"""A backend in the test's hands: what it generates, when, and what became of each stream."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from engine.request import CompletionRequest, Delta, Finished, FinishReason, Timing, Usage
from lsp_server.backends.base import BackendState, BackendStatus


@dataclass
class ScriptedBackend:
    """Streams ``pieces`` for every request; with ``gate`` it waits before each piece until the test opens it."""

    pieces: tuple[str, ...] = ("text",)
    state: BackendState = BackendState.READY
    gate: asyncio.Event | None = None
    error: Exception | None = None
    requests: list[CompletionRequest] = field(default_factory=list)
    num_open: int = 0
    num_closed_early: int = 0
    num_starts: int = 0
    num_restarts: int = 0
    is_closed: bool = False
    message: str = ""

    @property
    def status(self) -> BackendStatus:
        return BackendStatus(self.state, "scripted", self.message)

    async def ensure_ready(self) -> BackendStatus:
        self.num_starts += 1
        return self.status

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        self.num_open += 1
        is_finished = False
        try:
            for number, piece in enumerate(self.pieces):
                if self.gate is not None:
                    await self.gate.wait()
                if self.error is not None:
                    raise self.error
                yield Delta(piece, (number,), usage=Usage(10, 4, number + 1))
            is_finished = True
            usage = Usage(prompt_tokens=10, cached_tokens=4, generated_tokens=len(self.pieces))
            yield Delta("", (), Finished(FinishReason.STOP, usage, Timing()), usage)
        finally:
            self.num_open -= 1
            self.num_closed_early += not is_finished

    async def restart(self) -> BackendStatus:
        self.num_restarts += 1
        return self.status

    async def aclose(self) -> None:
        self.is_closed = True
