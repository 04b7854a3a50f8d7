"""What the engine's core is for, measured on the default model. Each test prints its numbers; ratios are of one run.

The machine may be shared, so each bar is given three attempts: it says what the engine can do, and a neighbour's load
does not change that.
"""

import random
import statistics
import sysconfig
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import PROFILES, Profile
from engine.engine import Completion, Engine
from engine.loop import Job
from engine.request import CompletionRequest, Delta, Finished, Lane, SamplingParams

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(900)]
_PROFILE = PROFILES["completion"]
_MODULES = (
    *("argparse", "ast", "asyncio/tasks", "base64", "calendar", "cmd", "codecs", "configparser", "csv"),
    *("dataclasses", "difflib", "fractions", "gzip", "heapq", "inspect", "json/decoder", "logging/handlers"),
    *("mailbox", "pathlib", "queue", "shutil", "tarfile", "textwrap", "zipfile"),
)


class _Passes:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.num_rows: list[int] = []

    def on_pass(self, lane: Lane, num_rows: int, seconds: float, num_keys: tuple[int, int]) -> None:
        self.seconds.append(seconds)
        self.num_rows.append(num_rows)

    def on_end(self, lane: Lane, finished: Finished) -> None:
        pass

    def on_waste(self, lane: Lane, num_tokens: int) -> None:
        pass


@pytest.fixture
def engine(default_engine: Engine) -> Engine:
    fresh = default_engine.with_profile(_PROFILE)
    fresh.cache.clear()
    return fresh


def _attempts(measure: Callable[[], tuple[bool, str]]) -> None:
    report = ""
    for _ in range(3):
        is_met, report = measure()
        print(report)
        if is_met:
            return
    pytest.fail(report)


def _tokens(pick: random.Random, count: int) -> list[int]:
    return [pick.randrange(1000, 100_000) for _ in range(count)]


def _request(token_ids: list[int], max_tokens: int = 1, lane: Lane = Lane.INTERACTIVE) -> CompletionRequest:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return CompletionRequest("", prompt_ids=tuple(token_ids), sampling=sampling, lane=lane)


def _timed(engine: Engine, request: CompletionRequest) -> tuple[Completion, float]:
    started = time.perf_counter()
    (answer,) = engine.complete_all([request])
    return answer, time.perf_counter() - started


def test_a_prompt_extended_by_two_tokens_computes_two_tokens(engine: Engine) -> None:
    pick = random.Random(1)

    def measure() -> tuple[bool, str]:
        token_ids = _tokens(pick, 1200)
        _, cold_s = _timed(engine, _request(token_ids))
        answer, warm_s = _timed(engine, _request(token_ids + _tokens(pick, 2)))
        usage = answer.finished.usage
        assert usage.prompt_tokens - usage.cached_tokens == 2
        report = f"prefix hit: 1,200 tokens cold {cold_s:.2f} s, 2 more {warm_s * 1e3:.0f} ms, {cold_s / warm_s:.0f} x"
        return cold_s >= 20 * warm_s, report

    _attempts(measure)


def test_scheduling_takes_hardly_any_time(engine: Engine) -> None:
    """What is neither a layer nor the choice of a token: planning, tensors of the batch, bookkeeping."""
    engine = engine.with_profile(replace(_PROFILE, max_drafts=0))
    token_ids = _tokens(random.Random(6), 600)
    _timed(engine, _request(token_ids))

    def measure() -> tuple[bool, str]:
        passes = _Passes()
        engine.loop.observer = passes
        _, wall_s = _timed(engine, _request(token_ids, 40))
        overhead_ms = (wall_s - sum(passes.seconds)) / len(passes.seconds) * 1e3
        return overhead_ms <= 2.0, f"scheduling: {overhead_ms:.2f} ms a step at batch 1 (bar 2)"

    _attempts(measure)


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def test_a_cancelled_prefill_leaves_the_computing_thread_idle_at_once(engine: Engine) -> None:
    pick = random.Random(2)

    def cancel_once() -> float:
        job = engine.prepare(_request(_tokens(pick, 2048)), lambda _: None, lambda _: None)
        engine.loop.submit(job)
        ended_s: list[float] = []

        def compute() -> None:
            while engine.loop.has_work:
                engine.loop.step()
            ended_s.append(time.perf_counter())

        thread = threading.Thread(target=compute)
        thread.start()
        time.sleep(pick.uniform(0.3, 1.5))
        cancelled_s = time.perf_counter()
        engine.loop.cancel(job)
        thread.join()
        return ended_s[0] - cancelled_s

    def measure() -> tuple[bool, str]:
        waits_s = [cancel_once() for _ in range(20)]
        p95_ms = _quantile(waits_s, 0.95) * 1e3
        return p95_ms <= 25, f"cancel: p50 {statistics.median(waits_s) * 1e3:.0f} ms, p95 {p95_ms:.0f} ms (bar 25)"

    _attempts(measure)
    engine.loop.check_idle()


class _Typist:
    """Extends one buffer by two tokens at a time, and measures the time to the first token of each answer."""

    def __init__(self, engine: Engine, pick: random.Random) -> None:
        self._engine = engine
        self._pick = pick
        self._token_ids = _tokens(pick, 400)
        _timed(engine, _request(self._token_ids))

    def type_once(self) -> float:
        self._token_ids = self._token_ids + _tokens(self._pick, 2)
        first_s: list[float] = []

        def take(delta: Delta) -> None:
            if not first_s:
                first_s.append(time.perf_counter())

        started = time.perf_counter()
        job = self._engine.prepare(_request(self._token_ids, 4), take, _raise)
        self._engine.loop.submit(job)
        while job.sequence.end_reason is None:
            time.sleep(0.001)
        return first_s[0] - started


def _raise(error: Exception) -> None:
    raise error


def test_bulk_work_hardly_delays_a_keystroke(engine: Engine) -> None:
    pick = random.Random(3)
    typist = _Typist(engine, pick)
    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            if engine.loop.has_work:
                engine.loop.step()
            else:
                time.sleep(0.0005)

    def keep_busy() -> list[Job]:
        jobs = [engine.prepare(_request(_tokens(pick, 300), 60, Lane.BULK), lambda _: None, _raise) for _ in range(60)]
        for job in jobs:
            engine.loop.submit(job)
        return jobs

    def type_for_a_while() -> list[float]:
        waits_s = []
        for _ in range(20):
            time.sleep(pick.uniform(0.05, 0.15))
            waits_s.append(typist.type_once())
        return waits_s

    def measure() -> tuple[bool, str]:
        idle_s = type_for_a_while()
        jobs = keep_busy()
        time.sleep(1.0)
        busy_s = type_for_a_while()
        assert any(job.sequence.end_reason is None for job in jobs), "bulk work ran out"
        for job in jobs:
            engine.loop.cancel(job)
        idle_ms, busy_ms = _quantile(idle_s, 0.95) * 1e3, _quantile(busy_s, 0.95) * 1e3
        report = (
            f"lanes: first token p95 {idle_ms:.0f} ms idle, {busy_ms:.0f} ms beside bulk, {busy_ms / idle_ms:.2f} x"
        )
        return busy_ms <= 2 * idle_ms, report

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        _attempts(measure)
    finally:
        is_over.set()
        thread.join()
        engine.loop.cancel_all()


def test_bulk_work_keeps_its_speed_when_nobody_types(engine: Engine) -> None:
    """Against the same passes in a lane that nothing interrupts."""
    pick = random.Random(4)
    alike = replace(_PROFILE, interactive=_PROFILE.bulk)

    def measure() -> tuple[bool, str]:
        nonlocal engine
        prompts = [_tokens(pick, 100) for _ in range(8)]
        seconds = {}
        for lane in (Lane.INTERACTIVE, Lane.BULK):
            engine = engine.with_profile(alike)
            engine.cache.clear()
            started = time.perf_counter()
            engine.complete_all([_request(prompt, 16, lane) for prompt in prompts])
            seconds[lane] = time.perf_counter() - started
        share = seconds[Lane.INTERACTIVE] / seconds[Lane.BULK]
        return share >= 0.9, f"bulk alone: {share:.2f} of the speed without interruptions"

    _attempts(measure)


def _next_lines(tokenize: Callable[[str], list[int]]) -> list[CompletionRequest]:
    """One hole in each of some real source files: a line in the middle, with what stands around it."""
    pick = random.Random(5)
    requests = []
    for module in _MODULES:
        text = (Path(sysconfig.get_paths()["stdlib"]) / f"{module}.py").read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        candidates = [n for n in range(len(lines) // 3, len(lines)) if len(lines[n].strip()) > 12]
        at = pick.choice(candidates)
        before, after = "".join(lines[:at])[-2500:], "".join(lines[at + 1 :])[:600]
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        sampling = SamplingParams(max_tokens=48, stop=("\n",))
        requests.append(CompletionRequest(before + indent, "\n" + after, sampling))
    return requests


def test_speculation_saves_passes_and_never_costs_time(engine: Engine) -> None:
    profiles = {"plain": replace(_PROFILE, max_drafts=0), "speculative": _PROFILE}
    requests = _next_lines(engine.tokenize)
    assert len(requests) >= 20

    def run(profile: Profile) -> tuple[int, int, float]:
        nonlocal engine
        engine = engine.with_profile(profile)
        passes = _Passes()
        num_tokens, seconds = 0, 0.0
        for request in requests:
            warm_up = replace(request, sampling=replace(request.sampling, max_tokens=0))
            engine.loop.observer = None
            engine.complete_all([warm_up])  # so that only decoding is compared
            engine.loop.observer = passes
            answer, answer_s = _timed(engine, request)
            num_tokens += len(answer.token_ids)
            seconds += answer_s
        return num_tokens, len(passes.seconds), seconds

    def measure() -> tuple[bool, str]:
        plain = run(profiles["plain"])
        speculative = run(profiles["speculative"])
        per_pass = speculative[0] / speculative[1]
        ratio = speculative[2] / plain[2]
        report = (
            f"speculation: {len(requests)} files, {speculative[0]} tokens, {plain[1]} passes plain, {speculative[1]} "
            f"speculative: {per_pass:.2f} tokens a pass, {ratio:.2f} of the time"
        )
        return per_pass >= 1.5 and ratio <= 1.05, report

    _attempts(measure)
