"""The pipeline of a bulk run: plan requests, take what the journal has, compute the rest, verify, try once more.

Holes with equal requests share one answer. An answer is in the journal before anybody looks at it, so that a run that
is killed anywhere goes on there, and ends as it would have. Nothing here writes a user's file.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from engine.bulk.wire import AUTO_BATCH, Item, Progress, Ready, Result, Start, Summary
from engine.config import EngineConfig
from engine.request import CompletionRequest, FinishReason
from lsp_server.bulk.context import RepositoryContext
from lsp_server.bulk.events import Computing, Event, Loaded, Loading, Planned, Settled
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import Hole
from lsp_server.bulk.journal import Journal, Record
from lsp_server.bulk.requests import RequestOptions, key_of, placed, request_for, second_attempt, shown
from lsp_server.bulk.verify import Verdict, verify
from lsp_server.bulk.wording import counted
from lsp_server.bulk.worker import COMMAND, Worker, worker

_MARKERS = "markers"
_ANYTHING = "x"
_NUM_ATTEMPTS = 2


@dataclass(frozen=True)
class RunOptions:
    """What a run needs beside its holes."""

    engine: EngineConfig
    """With a model's name in place of ``auto``, and paths that hold in every folder."""
    model_identity: str
    """See ``requests.model_identity``."""
    context: RepositoryContext
    requests: RequestOptions = field(default_factory=RequestOptions)
    max_batch: int = AUTO_BATCH
    is_sequential: bool = False
    """The holes of a file one after the other, each in the text with those before it filled."""
    is_sorted: bool = True
    """False: computed in the order of the selection; for measuring."""
    worker_command: Sequence[str] = COMMAND


@dataclass(frozen=True)
class RunResult:
    """What came out, and how the engine did."""

    fills: tuple[Fill, ...]
    """One for each hole, in the order of the selection."""
    seconds: float
    ready: Ready | None = None
    """None, like ``summary``, when the journal had all answers."""
    summary: Summary | None = None


async def run(
    holes: Sequence[Hole], journal: Journal, options: RunOptions, on_event: Callable[[Event], None]
) -> RunResult:
    """Fill the holes. May be cancelled at any point; what is done by then is in the journal.

    Raises ``ServiceError`` when the engine cannot compute, ``JournalError`` when the journal cannot be written.
    """
    started_s = time.monotonic()
    pipeline = _Pipeline(holes, journal, options, on_event)
    await pipeline.run()
    return RunResult(pipeline.outcome(), time.monotonic() - started_s, pipeline.ready, pipeline.summary)


@dataclass(frozen=True)
class _Trial:
    """One hole's way to an answer."""

    index: int
    attempt: int = 1


class _Pipeline:
    """The state of one run."""

    def __init__(
        self, holes: Sequence[Hole], journal: Journal, options: RunOptions, on_event: Callable[[Event], None]
    ) -> None:
        self.ready: Ready | None = None
        self.summary: Summary | None = None
        self._holes = holes
        self._options = options
        self._journal = journal
        self._on_event = on_event
        self._files: dict[str, list[int]] = {}
        for index, hole in enumerate(holes):
            self._files.setdefault(hole.source.relative, []).append(index)
        self._fills: dict[int, Fill] = {}
        self._num_failed = 0
        self._trials: deque[_Trial] = deque()
        self._waiting: dict[str, list[_Trial]] = {}
        """By the key of a request that is being computed."""
        self._computed: set[str] = set()
        self._keys: dict[int, str] = {}
        """By the number of the request."""
        self._to_send: asyncio.Queue[tuple[int, _Trial]] = asyncio.Queue()
        self._numbers = count()

    def outcome(self) -> tuple[Fill, ...]:
        """The fills in the order of their holes; complete after ``run``."""
        return tuple(self._fills[index] for index in range(len(self._holes)))

    async def run(self) -> None:
        """Settle every hole."""
        self._on_event(Planned(len(self._holes), len(self._files)))
        for indices in self._files.values():
            begun = indices[:1] if self._options.is_sequential else indices
            self._trials.extend(map(_Trial, begun))
        await self._advance()
        if self._waiting:
            self._on_event(Loading(self._options.engine.model))
            await self._compute()

    async def _compute(self) -> None:
        start = Start(self._options.engine, self._options.max_batch, self._options.is_sorted)
        async with worker(start, self._options.worker_command) as engine:
            tasks = [asyncio.create_task(work) for work in (self._listen(engine), self._feed(engine))]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, engine: Worker) -> None:
        async for message in engine.said():
            await self._hear(message)
            if not self._waiting:
                engine.finish()

    async def _feed(self, engine: Worker) -> None:
        """Until it is cancelled."""
        while True:
            number, trial = await self._to_send.get()
            await engine.tell(Item(number, self._asked(trial)[1]))

    async def _hear(self, message: object) -> None:
        if isinstance(message, Result):
            self._take(message)
            await self._advance()
        elif isinstance(message, Progress):
            self._on_event(Computing(message))
        elif isinstance(message, Ready):
            self.ready = message
            self._on_event(Loaded(message))
        elif isinstance(message, Summary):
            self.summary = message

    async def _advance(self) -> None:
        """Settle what needs no model, and queue the rest for it."""
        while self._trials:
            await asyncio.sleep(0)  # where an interrupt gets in
            trial = self._trials.popleft()
            key, _ = self._asked(trial)
            if key in self._waiting:
                self._waiting[key].append(trial)
            elif record := self._journal.get(key):
                self._judge(trial, record)
            else:
                number = next(self._numbers)
                self._waiting[key], self._keys[number] = [trial], key
                self._to_send.put_nowait((number, trial))

    def _take(self, result: Result) -> None:
        """Keep an answer, then see what it is good for."""
        key = self._keys.pop(result.id)
        trials = self._waiting.pop(key)
        if result.error:
            for trial in trials:
                self._settle(trial, Fill(self._holes[trial.index], FillState.FAILED, reason=result.error, key=key))
            return
        attempt = trials[0].attempt
        record = Record(key, result.text, result.reason, result.usage, result.mean_logprob, attempt)
        self._journal.add(record)
        self._computed.add(key)
        for trial in trials:
            self._judge(trial, record)

    def _judge(self, trial: _Trial, record: Record) -> None:
        verdict = _verdict(self._to_verify(trial.index), record)
        if verdict.reason and trial.attempt < _NUM_ATTEMPTS:
            self._trials.append(replace(trial, attempt=trial.attempt + 1))
            return
        fill = Fill(
            self._holes[trial.index],
            FillState.FAILED if verdict.reason else FillState.FILLED,
            "" if verdict.reason else verdict.text,
            verdict.reason,
            record.key,
            record.usage,
            record.mean_logprob,
            is_from_journal=record.key not in self._computed,
        )
        self._settle(trial, fill)

    def _settle(self, trial: _Trial, fill: Fill) -> None:
        fill = replace(fill, num_attempts=trial.attempt)
        self._fills[trial.index] = fill
        self._num_failed += fill.state is FillState.FAILED
        self._on_event(Settled(fill, len(self._fills), self._num_failed))
        if self._options.is_sequential:
            indices = self._files[fill.hole.source.relative]
            following = indices.index(trial.index) + 1
            self._trials.extend(map(_Trial, indices[following : following + 1]))

    def _seen(self, index: int) -> Hole:
        """The hole as the model sees it."""
        return shown(self._holes[index], [(self._holes[other], self._known(other)) for other in self._others(index)])

    def _to_verify(self, index: int) -> Hole:
        """The hole in a file that is as whole as it can be: a stub is code, a marker is not."""
        standing = []
        for other in self._others(index):
            hole = self._holes[other]
            if text := self._known(other) or (_ANYTHING if hole.kind == _MARKERS else ""):
                standing.append((hole, text))
        return placed(self._holes[index], standing)

    def _others(self, index: int) -> Iterator[int]:
        """The other holes of the file."""
        return (other for other in self._files[self._holes[index].source.relative] if other != index)

    def _known(self, index: int) -> str:
        """What is in a hole for those that come later; empty if nothing is."""
        fill = self._fills.get(index)
        if not self._options.is_sequential or fill is None or fill.state is not FillState.FILLED:
            return ""
        return fill.hole.before_fill + fill.text + fill.hole.after_fill

    def _asked(self, trial: _Trial) -> tuple[str, CompletionRequest]:
        """The request of an attempt, and its key."""
        options = self._options
        hole = self._seen(trial.index)
        request = request_for(hole, options.requests, options.context.files_for(hole.source))
        key = key_of(options.model_identity, request)
        if trial.attempt == 1:
            return key, request
        first = self._journal.get(key)
        request = second_attempt(request, options.requests.seed, first.text if first else "")
        return key_of(options.model_identity, request), request


def _verdict(hole: Hole, record: Record) -> Verdict:
    if record.reason == FinishReason.REPETITION.value:
        return Verdict("", "it repeats itself")
    if record.reason == FinishReason.LENGTH.value:
        return Verdict("", f"not finished within {counted(hole.max_tokens, 'tokens')}; a larger max_tokens allows more")
    return verify(hole, record.text)
