"""From items to results: what runs next, what is told of it, and what it has cost. Imports torch."""

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.bulk.counts import Counts
from engine.bulk.order import Order, awaited_start, key_of, token_ids_of
from engine.bulk.wire import Item, Progress, Result
from engine.cache.kv_cache import KVCache
from engine.config import LaneLimits
from engine.engine import Engine
from engine.errors import MidlineError, ServiceError
from engine.fim import Prompt
from engine.loop import Job
from engine.request import CompletionRequest, Delta, Lane

_logger = logging.getLogger(__name__)
_PROGRESS_S = 0.5
_GATHER_S = 1.0
"""For reading prompts before the first pass: the more are known, the better the order."""
_TAKE_S = 0.05
"""For the same between two passes, which take several times as long."""

Inbox = queue.SimpleQueue[Item | Exception | None]
"""What is asked; None says that no more will come, an exception that it cannot be understood."""


@dataclass(frozen=True)
class _Waiting:
    """A request without the texts that its prompt was made of: 10,000 of them stay small."""

    request: CompletionRequest
    key: bytes
    required: bytes


@dataclass
class _Running:
    """A request in the loop."""

    job: Job
    key: bytes
    num_computed: int
    """Tokens that were in the cache when it was handed over, or that have been computed since."""
    is_admitted: bool = False
    """It holds blocks, to its end."""

    @property
    def is_prefilling(self) -> bool:
        """Tokens of its prompt are missing."""
        return self.num_missing > 1

    @property
    def num_missing(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.job.sequence.token_ids) - self.num_computed


class Runner:
    """Completes items until no more come. The engine must be its own, under a profile whose bulk limits count."""

    def __init__(
        self,
        engine: Engine,
        limits: LaneLimits,
        inbox: Inbox,
        say: Callable[[Result | Progress], None],
        *,
        is_sorted: bool = True,
    ) -> None:
        self.counts = Counts(engine)
        self._engine = engine
        self._limits = limits
        self._inbox = inbox
        self._say = say
        self._order = Order(is_sorted=is_sorted)
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[int, _Running] = {}
        self._unfinished: set[int] = set()
        self._known: set[int] = set()
        self._is_open = True
        self._last_said_s = time.monotonic()

    def run(self) -> None:
        """Returns when all is done. Raises ``ServiceError`` for what came in and is no item."""
        self._receive(_GATHER_S)
        while self._is_open or self._unfinished:
            self._receive(_TAKE_S)
            self._feed()
            if self._running:
                self._step()
            self._say_progress()

    def _receive(self, seconds: float) -> None:
        """Take in what has come, for so long at most; if there is nothing to do, wait for it."""
        ends_s = time.monotonic() + seconds
        while self._is_open and time.monotonic() < ends_s:
            try:
                item = self._inbox.get(timeout=0.0 if self._unfinished else _PROGRESS_S)
            except queue.Empty:
                return
            if isinstance(item, Exception):
                raise item
            if item is None:
                self._is_open = False
            else:
                self._take_in(item)

    def _take_in(self, item: Item) -> None:
        if item.id in self._known:
            raise ServiceError(f"the bulk engine was sent two items with the id {item.id}")
        self._known.add(item.id)
        self._unfinished.add(item.id)
        try:
            prompt = self._engine.prompt(item.request)
        except (MidlineError, ValueError, TypeError) as error:  # the latter of texts that no tokenizer takes
            self._finish(Result(item.id, error=_line(error)))
            return
        request = replace(
            item.request, prefix="", suffix=None, extra=(), anchor=None, lane=Lane.BULK, session="", deadline_ms=None
        )
        self._waiting[item.id] = _Waiting(request, key_of(prompt.ids), prompt.required)
        self._order.add(self._waiting[item.id].key, item.id)

    def _feed(self) -> None:
        """Hand over what the next pass has room for, and nothing whose start another one is about to compute."""
        num_rows = sum(running.num_missing for running in self._running.values())
        awaited = [self._awaited(running) for running in self._running.values() if running.is_prefilling]
        while len(self._running) < self._limits.max_sequences and num_rows < self._limits.max_batch_tokens:
            number = self._order.take(start for start in awaited if start)
            if number is None:
                break
            running = self._begin(number)
            num_rows += running.num_missing
            awaited.append(self._awaited(running))
        self.counts.max_running = max(self.counts.max_running, len(self._running))

    def _awaited(self, running: _Running) -> bytes | None:
        size = self._engine.cache.pool.block_tokens
        return awaited_start(running.key, running.num_computed // size * size)

    def _begin(self, number: int) -> _Running:
        waiting = self._waiting.pop(number)
        prompt = Prompt(token_ids_of(waiting.key), waiting.required)
        texts: list[str] = []

        def on_delta(delta: Delta) -> None:
            texts.append(delta.text)
            self.counts.num_generated_tokens += len(delta.token_ids)
            if (finished := delta.finished) is not None:
                text, reason = "".join(texts), finished.reason.value
                self._finish(Result(number, text, reason, finished.usage, finished.mean_logprob))

        def on_error(error: Exception) -> None:
            self._finish(Result(number, error=_line(error)))

        job = self._engine.prepare(waiting.request, on_delta, on_error, prompt=prompt)
        self._running[number] = _Running(job, waiting.key, _num_cached(self._engine.cache, prompt.ids))
        self._engine.loop.submit(job)
        return self._running[number]

    def _step(self) -> None:
        """One pass."""
        before = [(running, running.is_prefilling) for running in self._running.values()]
        num_generated, started = self.counts.num_generated_tokens, time.perf_counter()
        try:
            self._engine.loop.step()
        except Exception as error:  # noqa: BLE001 - each request tells it
            _logger.error("the engine's loop broke: %s", type(error).__name__)
            self._engine.loop.fail_all(error)
        seconds = time.perf_counter() - started
        is_decoding = True
        for running, was_prefilling in before:
            sequence = running.job.sequence
            if sequence.table is None and sequence.end_reason is None:
                self.counts.num_preemptions += running.is_admitted
                continue  # there is no room for it yet
            is_decoding &= not was_prefilling
            running.is_admitted, running.num_computed = True, sequence.num_computed
        if is_decoding:
            self.counts.on_decode(seconds, self.counts.num_generated_tokens - num_generated)

    def _finish(self, result: Result) -> None:
        self._running.pop(result.id, None)
        self._unfinished.discard(result.id)
        self.counts.num_done += 1
        self._say(result)

    def _say_progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_said_s >= _PROGRESS_S:
            self._last_said_s = now_s
            running = [running.job.sequence for running in self._running.values()]
            self._say(self.counts.progress(running, len(self._waiting)))


def _num_cached(cache: KVCache, token_ids: list[int]) -> int:
    """Tokens that need not be computed; the last one always is."""
    match = cache.index.match(cache.namespace, token_ids[:-1])
    return len(match.nodes) * cache.pool.block_tokens + match.num_tail_tokens


def _line(error: Exception) -> str:
    return str(error) if isinstance(error, MidlineError) else f"the engine failed: {type(error).__name__}"
