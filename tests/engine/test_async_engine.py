"""Streams on the computing thread: order, cancellation at every moment, lanes, and that nothing is left behind."""

import asyncio
import gc
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace

import psutil
import pytest

from engine.async_engine import AsyncEngine
from engine.config import PROFILES, EngineConfig, LaneLimits
from engine.engine import Engine
from engine.errors import RequestError, ServiceError
from engine.model.decoder import ForwardPass
from engine.request import CompletionRequest, Delta, FinishReason, Lane, SamplingParams
from tests.support.tiny_checkpoints import write_tiny_gguf


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=1)
    return Engine.load(EngineConfig(model=str(path), dtype="float32", max_context_tokens=512))


@pytest.fixture
async def runner(engine: Engine) -> AsyncGenerator[AsyncEngine, None]:
    """An engine with a thread; afterwards nothing may be held."""
    running = AsyncEngine(engine.with_profile(PROFILES["completion"]))
    yield running
    await running.aclose()
    running.engine.loop.check_idle()
    assert not running.engine.loop.has_work


class Gate:
    """Holds up every forward pass between two layers until it is opened."""

    def __init__(self) -> None:
        self.num_layers = 0
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def close(self) -> None:
        self._opened.clear()

    def wait(self) -> None:
        self.num_layers += 1
        self._opened.wait(10)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    held = Gate()
    advance = ForwardPass.advance

    def advance_when_open(forward: ForwardPass) -> None:
        held.wait()
        advance(forward)

    monkeypatch.setattr(ForwardPass, "advance", advance_when_open)
    yield held
    held.open()


def _request(prefix: str = "def f():\n", **sampling: object) -> CompletionRequest:
    return CompletionRequest(prefix, "\n", SamplingParams(**{"max_tokens": 8, **sampling}))  # type: ignore[arg-type]


async def _read(runner: AsyncEngine, request: CompletionRequest) -> list[Delta]:
    return [delta async for delta in runner.stream(request)]


def _reason(deltas: list[Delta]) -> FinishReason:
    assert [delta.finished is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    finished = deltas[-1].finished
    assert finished is not None
    return finished.reason


async def _until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.002)


async def test_streams_give_the_blocking_engine_s_text(engine: Engine) -> None:
    requests = [_request("a"), _request("def f(x):\n    "), _request("a", temperature=1.0, seed=3)]
    expected = [answer.text for answer in engine.complete_all(requests)]
    runner = AsyncEngine(engine.with_profile(PROFILES["completion"]))
    answers = await asyncio.gather(*(_read(runner, request) for request in requests))
    assert ["".join(delta.text for delta in deltas) for deltas in answers] == expected
    await _until(lambda: not runner.num_running and not runner.num_waiting)
    await runner.aclose()


async def test_closing_a_stream_stops_its_pass_before_the_next_layer(runner: AsyncEngine, gate: Gate) -> None:
    reader = asyncio.create_task(_read(runner, _request()))
    await _until(lambda: gate.num_layers == 1)
    reader.cancel()
    await asyncio.wait([reader])
    gate.open()
    await _until(lambda: not runner.num_running)
    await _until(lambda: runner.kv_use[0] == 0)
    assert gate.num_layers == 1  # of two


async def test_a_waiting_request_that_is_cancelled_never_begins(engine: Engine, gate: Gate) -> None:
    one = replace(PROFILES["completion"], interactive=LaneLimits(1, 128))
    runner = AsyncEngine(engine.with_profile(one))
    readers = [asyncio.create_task(_read(runner, _request())) for _ in range(3)]
    await _until(lambda: runner.num_running == 1 and runner.num_waiting == 2)
    readers[1].cancel()
    await asyncio.wait([readers[1]])
    gate.open()
    first, _, third = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(first, list) and isinstance(third, list)
    assert _reason(first) == _reason(third) == FinishReason.LENGTH
    assert third[-1].finished is not None and third[-1].finished.timing.queue_ms > 0
    await runner.aclose()


async def test_closing_the_engine_ends_every_reader(engine: Engine, gate: Gate) -> None:
    runner = AsyncEngine(engine.with_profile(PROFILES["completion"]))
    readers = [asyncio.create_task(_read(runner, _request(str(i)))) for i in range(30)]
    await _until(lambda: gate.num_layers)
    closing = asyncio.create_task(runner.aclose())
    await asyncio.sleep(0)
    gate.open()
    for deltas in await asyncio.wait_for(asyncio.gather(*readers), 5):
        assert _reason(deltas) is FinishReason.CANCELLED
    await closing
    with pytest.raises(ServiceError, match="the engine is closed"):
        await anext(runner.stream(_request()))
    engine.loop.check_idle()


async def test_a_bad_prompt_is_raised_to_its_reader_alone(runner: AsyncEngine) -> None:
    with pytest.raises(RequestError, match="empty"):
        await anext(runner.stream(CompletionRequest("", None)))
    assert _reason(await _read(runner, _request())) is FinishReason.LENGTH


async def test_a_broken_pass_is_raised_to_its_readers_and_the_engine_goes_on(
    runner: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ForwardPass, "advance", lambda _: 1 // 0)
        answers = await asyncio.gather(*(_read(runner, _request(str(i))) for i in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [ZeroDivisionError] * 3
        patch.setattr("engine.loop.Loop._plan", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await _read(runner, _request())
    assert _reason(await _read(runner, _request())) is FinishReason.LENGTH


async def test_a_lost_block_is_reported_when_idle_and_the_engine_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("engine.async_engine._IDLE_CHECK_S", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(type(engine.cache), "num_used", property(lambda _: 1))
        runner = AsyncEngine(engine.with_profile(PROFILES["completion"]))
        await _until(lambda: "the cache has lost count (blocks are held by nobody)" in caplog.text)
    assert _reason(await _read(runner, _request())) is FinishReason.LENGTH
    await runner.aclose()


async def test_a_newer_request_of_a_session_supersedes_the_older_and_keeps_its_tokens(
    runner: AsyncEngine, gate: Gate
) -> None:
    text = "x = [1, 2, 3]\n" * 12
    older = asyncio.create_task(_read(runner, replace(_request(text), session="buffer")))
    await _until(lambda: gate.num_layers == 1)
    newer = asyncio.create_task(_read(runner, replace(_request(text + "y"), session="buffer")))
    other = asyncio.create_task(_read(runner, replace(_request(text), session="another")))
    await asyncio.sleep(0.01)
    gate.open()
    assert _reason(await older) is FinishReason.SUPERSEDED
    deltas = await newer
    assert _reason(deltas) is FinishReason.LENGTH
    assert deltas[-1].usage.cached_tokens > 100  # the pass in flight was of use, and was not given up
    assert _reason(await other) is FinishReason.LENGTH


async def test_of_many_superseded_requests_exactly_the_last_is_answered(runner: AsyncEngine) -> None:
    """Stale answers: whatever the moment, an older request of a session never ends as if it were current."""
    answers = await asyncio.gather(
        *(_read(runner, replace(_request("x = 1\n" + "y" * i, max_tokens=20), session="s")) for i in range(40))
    )
    reasons = [_reason(deltas) for deltas in answers]
    assert reasons[-1] is not FinishReason.SUPERSEDED
    assert set(reasons[:-1]) <= {FinishReason.SUPERSEDED, FinishReason.LENGTH, FinishReason.STOP}
    assert reasons.count(FinishReason.SUPERSEDED) >= 30


async def test_a_request_whose_deadline_has_passed_is_dropped_before_its_prompt_is_computed(
    engine: Engine, gate: Gate
) -> None:
    one = replace(PROFILES["completion"], interactive=LaneLimits(1, 128))
    runner = AsyncEngine(engine.with_profile(one))
    first = asyncio.create_task(_read(runner, _request()))
    await _until(lambda: gate.num_layers == 1)
    late = asyncio.create_task(_read(runner, replace(_request("late"), deadline_ms=20.0)))
    patient = asyncio.create_task(_read(runner, replace(_request("late"), deadline_ms=60_000.0)))
    await asyncio.sleep(0.05)
    gate.open()
    assert _reason(await first) is FinishReason.LENGTH
    deltas = await late
    assert _reason(deltas) is FinishReason.EXPIRED
    assert deltas[-1].usage.cached_tokens == 0 and len(deltas) == 1
    assert _reason(await patient) is FinishReason.LENGTH
    await runner.aclose()


async def test_a_keystroke_interrupts_bulk_work_within_a_layer_which_then_goes_on(
    runner: AsyncEngine, gate: Gate
) -> None:
    bulk_request = replace(_request("for i in x:\n" * 20), lane=Lane.BULK)
    alone = _read(runner, bulk_request)
    gate.open()
    expected = [delta.token_ids for delta in await alone]
    runner.engine.cache.clear()
    gate.close()
    before = gate.num_layers
    bulk = asyncio.create_task(_read(runner, bulk_request))
    await _until(lambda: gate.num_layers == before + 1)  # in the first layer of a pass of 256 rows
    typed = asyncio.create_task(_read(runner, _request("typed")))
    await asyncio.sleep(0.02)
    gate.open()
    assert _reason(await typed) is FinishReason.LENGTH
    assert [delta.token_ids for delta in await bulk] == expected


async def test_bulk_is_never_starved(engine: Engine) -> None:
    """Somebody types without end; bulk work finishes all the same, because a share of the time is its own."""
    runner = AsyncEngine(engine.with_profile(PROFILES["completion"]))
    is_done = asyncio.Event()

    async def type_on(name: str) -> int:
        num_answers = 0
        while not is_done.is_set():
            await _read(runner, _request(name, max_tokens=30, ignore_eos=True))
            num_answers += 1
        return num_answers

    typing = [asyncio.create_task(type_on(str(i))) for i in range(3)]
    await asyncio.sleep(0.05)
    bulk = await asyncio.wait_for(_read(runner, replace(_request("bulk"), lane=Lane.BULK)), 30)
    is_done.set()
    assert _reason(bulk) is FinishReason.LENGTH
    assert min(await asyncio.gather(*typing)) >= 2
    await runner.aclose()


async def test_ten_thousand_requests_cancelled_at_random_leave_nothing_behind(engine: Engine) -> None:
    runner = AsyncEngine(engine.with_profile(PROFILES["completion"]))
    pick = random.Random(1)
    reasons: dict[str, int] = {}
    process = psutil.Process()

    async def ask(number: int) -> None:
        request = replace(
            _request(f"x = {number % 50}\n" * (number % 7 + 1), max_tokens=pick.randint(0, 4)),
            lane=pick.choice(list(Lane)),
            session=pick.choice(["", "", "a", "b"]),
        )
        num_wanted = pick.choice([0, 1, 2, 99, 99])
        num_deltas = 0
        async with aclosing(runner.stream(request)) as stream:
            if num_wanted == 0:  # goes away before anything has come
                reader = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                reader.cancel()
                await asyncio.wait([reader])
                reasons["unread"] = reasons.get("unread", 0) + 1
                return
            async for delta in stream:
                num_deltas += 1
                if delta.finished is not None:
                    reason = delta.finished.reason.value
                    reasons[reason] = reasons.get(reason, 0) + 1
                elif num_deltas >= num_wanted:
                    reasons["left"] = reasons.get("left", 0) + 1
                    return

    async def client(numbers: range) -> None:
        for number in numbers:
            await ask(number)

    started, num_threads = time.monotonic(), threading.active_count()
    await asyncio.gather(*(client(range(start, 1000, 40)) for start in range(40)))
    gc.collect()
    resident_bytes = process.memory_info().rss
    await asyncio.gather(*(client(range(start, 10_000, 40)) for start in range(1000, 1040)))
    await _until(lambda: not runner.num_running and not runner.num_waiting)
    assert sum(reasons.values()) == 10_000
    assert min(reasons[name] for name in ("unread", "left", "length", "superseded")) > 100
    await _until(lambda: runner.kv_use[0] == 0)
    assert len(asyncio.all_tasks()) == 1
    assert threading.active_count() == num_threads
    gc.collect()
    assert process.memory_info().rss - resident_bytes < 64e6
    assert time.monotonic() - started < 60
    assert _reason(await _read(runner, _request())) is FinishReason.LENGTH
    await runner.aclose()
    runner.engine.loop.check_idle()
