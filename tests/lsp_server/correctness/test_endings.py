"""Requests that end before their answer: cancelled, superseded, closed, other settings, shut down."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.model.decoder import ForwardPass
from lsp_server.completion.decide import refusal
from tests.support.edit_session import EditSession
from tests.support.fluent import PROGRAM
from tests.support.lsp_session import InProcessServer, until
from tests.support.screen import Screen
from tests.support.twins import CONFIG, EngineBackend, Judge, Twins, serving
from tests.support.typist import Typist

_CANCELLED = -32800


class Gate:
    """Holds up the serving engine's passes between two layers while it is closed."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self.num_held = 0

    def close(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def wait(self) -> None:
        if not self._is_open.is_set():
            self.num_held += 1
            assert self._is_open.wait(60)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    held, advance = Gate(), ForwardPass.advance

    def advance_when_open(forward: ForwardPass) -> None:
        if threading.current_thread() is not threading.main_thread():  # the judge's
            held.wait()
        advance(forward)

    monkeypatch.setattr(ForwardPass, "advance", advance_when_open)
    yield held
    held.open()


def _hole(at: str) -> tuple[str, int]:
    start = PROGRAM.index(at) + len(at)
    return PROGRAM[:start] + PROGRAM[PROGRAM.index("\n", start) :], start


def _session(
    running: InProcessServer, backend: EngineBackend, twins: Twins, at: str = "        self.x ="
) -> EditSession:
    screen = Screen(running.session, *_hole(at))
    return EditSession(running, backend, twins.cold, screen, Typist(screen, 0, ()))


def _set(running: InProcessServer, **settings: Any) -> None:
    running.session.notify("workspace/didChangeConfiguration", {"settings": {"midline": settings}})


async def _begin(session: EditSession, gate: Gate) -> "asyncio.Future[dict[str, Any]]":
    """A request that is being computed, and goes no further."""
    gate.close()
    num_held, answer = gate.num_held, session.screen.ask()
    await until(lambda: gate.num_held > num_held)
    return answer


async def test_cancelled_at_every_moment(fluent: Twins) -> None:
    """There is one reply to each request: the right text, or that it was cancelled; the next is right as ever."""
    async with serving(fluent) as (running, backend):
        session = _session(running, backend, fluent)
        num: Counter[str] = Counter()
        for number, char in enumerate("self.y + add(x, y) - self.length() * 2 + x1"):
            session.screen.type(char)
            answer, situation = session.screen.ask(), session.screen.situation
            if number % 13 < 12:
                await asyncio.sleep(number % 13 // 2 * 0.002)
            else:
                await asyncio.wait([answer], timeout=60)
            running.session.cancel(answer)
            reply = await asyncio.wait_for(answer, 60)
            num["cancelled" if "error" in reply else "answered"] += 1
            if "error" in reply:
                assert reply["error"]["code"] == _CANCELLED
            elif reply["result"]["items"]:
                session.check_text(reply["result"]["items"][0]["insertText"], situation)
            if number % 3 == 0:
                session.check_text(await session.screen.suggested(), situation)
        assert min(num["cancelled"], num["answered"]) >= 3
        ids = [reply["id"] for reply in running.session.replies]
        assert len(ids) == len(set(ids))


async def test_what_was_superseded_before_it_said_anything_is_asked_anew(fluent: Twins, gate: Gate) -> None:
    """Type a key, take it back: the answer that the key has ended is none."""
    async with serving(fluent) as (running, backend):
        session = _session(running, backend, fluent)
        first = await _begin(session, gate)
        session.screen.type("z")
        second = session.screen.ask()
        await until(lambda: len(backend.requests) == 2)
        gate.open()
        assert (await first)["result"] == {"items": []}
        session.check_text(await session.text_of(second), session.screen.situation)
        session.screen.backspace()
        assert await session.ask()
        assert backend.requests[-1].prefix == session.screen.situation.prefix


@pytest.mark.parametrize("is_reopened", [False, True])
async def test_closed_while_it_is_computed(fluent: Twins, gate: Gate, is_reopened: bool) -> None:
    async with serving(fluent) as (running, backend):
        session = _session(running, backend, fluent)
        answer = await _begin(session, gate)
        session.screen.close()
        if is_reopened:
            session = _session(running, backend, fluent, at="            print(")
            again = session.screen.ask()
        assert (await asyncio.wait_for(answer, 10))["result"] == {"items": []}  # though nothing is computed
        gate.open()
        if is_reopened:
            text = await session.text_of(again)
            session.check_text(text, session.screen.situation)
            assert text and backend.requests[-1].prefix == session.screen.situation.prefix
        assert len(running.server.session._tracks) == is_reopened


async def test_settings_change_while_it_is_computed(fluent: Twins, gate: Gate) -> None:
    """The request ends at once; nothing of what it would have said is shown later."""
    async with serving(fluent) as (running, backend):
        session = _session(running, backend, fluent, at="            print(")
        long = await session.ask()
        session.screen.type("z")
        answer = await _begin(session, gate)
        _set(running, completion={"max_block_tokens": 2})
        assert (await asyncio.wait_for(answer, 10))["result"] == {"items": []}
        gate.open()
        session.screen.backspace()
        text = await session.screen.suggested()
        config = replace(CONFIG, completion=replace(CONFIG.completion, max_block_tokens=2))
        assert running.server.session.config == config
        judge = Judge(fluent.cold, config)
        request, hole = backend.requests[-1], judge.hole(session.screen.situation)
        assert (request.prefix, request.sampling.max_tokens) == (session.screen.situation.prefix, 2)
        assert text == judge.fresh(request, hole).text != long


async def test_switched_off_and_on_while_it_is_computed(fluent: Twins, gate: Gate) -> None:
    async with serving(fluent) as (running, backend):
        session = _session(running, backend, fluent)
        answer = await _begin(session, gate)
        _set(running, enabled=False)
        assert (await asyncio.wait_for(answer, 10))["result"] == {"items": []}
        gate.open()
        await until(lambda: backend.is_idle)
        num_asked = len(backend.requests)
        session.screen.type("s")
        assert await session.screen.suggested() == ""
        assert running.server.session.recent[-1].outcome == "disabled"
        assert len(backend.requests) == num_asked
        _set(running, enabled=True)
        session.screen.type("e")
        assert await session.ask()


async def test_another_model_while_it_is_computed(fluent: Twins, suffix_first: Twins, gate: Gate) -> None:
    """What the former model said, or was about to, is not shown under the new one."""
    async with serving(fluent) as (running, backend):
        other = EngineBackend(suffix_first.warm)
        running.server.session._backend_factory = lambda *_: other
        session = _session(running, backend, fluent, at="            print(")
        former = await session.ask()
        session.screen.type("z")
        answer = await _begin(session, gate)
        _set(running, engine={"model": "other"})
        assert (await asyncio.wait_for(answer, 10))["result"] == {"items": []}
        gate.open()
        session.screen.backspace()
        text = await session.screen.suggested()
        judge = Judge(suffix_first.cold)
        assert text == judge.fresh(other.requests[-1], judge.hole(session.screen.situation)).text != former
        assert other.requests[-1].prefix == session.screen.situation.prefix
        await until(lambda: other.is_idle)
        await other.aclose_engine()


async def test_shut_down_while_it_is_computed(fluent: Twins, gate: Gate) -> None:
    async with serving(fluent) as (running, backend):
        session = _session(running, backend, fluent)
        answer = await _begin(session, gate)
        await asyncio.wait_for(running.session.shut_down(), 10)  # though nothing is computed
        assert answer.done() and answer.result()["result"] == {"items": []}
        assert await asyncio.wait_for(running.ended, 10) == 0
        gate.open()
        await until(lambda: backend.is_idle)


class Chaos:
    """Does anything at any time to one document."""

    def __init__(self, running: InProcessServer, backend: EngineBackend, twins: Twins, seed: int) -> None:
        self.running, self.twins, self.backend = running, twins, backend
        self.rng = random.Random(seed)
        self.session = _session(running, backend, twins)
        self.screen = self.session.screen
        self.is_enabled = True
        self.ghost = "self"
        self.asked: list[tuple[asyncio.Future[dict[str, Any]], Any, bool]] = []
        self.num: Counter[str] = Counter()

    async def play(self, num_steps: int) -> None:
        steps = {self._key: 12, self._ask: 12, self._cancel: 4, self._reopen: 1, self._switch: 1, self._pause: 6}
        for _ in range(num_steps):
            (step,) = self.rng.choices(list(steps), list(steps.values()))
            self.num[step.__name__] += 1
            await step()
        for answer, situation, is_enabled in self.asked:
            reply = await asyncio.wait_for(answer, 60)
            assert reply.get("error", {"code": _CANCELLED})["code"] == _CANCELLED
            self._judge(reply, situation, is_enabled)
        if not self.is_enabled:
            await self._switch()
        self.screen.jump(self.screen.text.find("\n", self.screen.cursor))
        situation = self.screen.situation
        text = await self.screen.suggested()
        assert refusal(situation, CONFIG) is None
        self.session.check_text(text, situation)

    def _judge(self, reply: dict[str, Any], situation: Any, is_enabled: bool) -> None:
        items = reply.get("result", {"items": []})["items"]
        self.num["texts"] += bool(items)
        if items:
            assert is_enabled
            self.session.check_text(items[0]["insertText"], situation)

    async def _key(self) -> None:
        char = self.rng.choice(("", "(", "z", "\n", " ", self.ghost[:1], self.ghost[:1], self.ghost))
        self.screen.accept(char) if char else self.screen.backspace()

    async def _ask(self) -> None:
        answer = self.screen.ask()
        self.asked.append((answer, self.screen.situation, self.is_enabled))
        if self.rng.random() < 0.4:
            reply = await asyncio.wait_for(answer, 60)
            items = reply["result"]["items"]
            self.ghost = items[0]["insertText"] if items else "self"

    async def _cancel(self) -> None:
        if self.asked:
            self.running.session.cancel(self.asked[-1][0])

    async def _reopen(self) -> None:
        self.screen.close()
        self.screen.version += 1
        self.running.session.open(self.screen.text, self.screen.uri, version=self.screen.version)

    async def _switch(self) -> None:
        self.is_enabled = not self.is_enabled
        _set(self.running, enabled=self.is_enabled)

    async def _pause(self) -> None:
        await asyncio.sleep(self.rng.choice((0, 0, 0.001, 0.005, 0.02)))


async def test_anything_at_any_time(fluent: Twins) -> None:
    num: Counter[str] = Counter()
    for seed in range(6):
        async with serving(fluent) as (running, backend):
            chaos = Chaos(running, backend, fluent, seed)
            try:
                await chaos.play(90)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            num += chaos.num + chaos.session.num
            ids = [reply["id"] for reply in running.session.replies]
            assert len(ids) == len(set(ids))
    assert num["stale"] == 0 and num["texts"] >= 40
    assert min(num["_cancel"], num["_reopen"], num["_switch"]) >= 4
