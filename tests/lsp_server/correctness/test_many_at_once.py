"""Keys faster than the engine, two buffers, two windows: nobody gets another's text, and no queue grows."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.model.decoder import ForwardPass
from engine.request import CompletionRequest
from tests.support.edit_session import EditSession
from tests.support.fluent import PROGRAM, write_fluent_gguf
from tests.support.lsp_session import LspSession, in_process_server, running_server, until
from tests.support.screen import Screen
from tests.support.services import stop_service
from tests.support.twins import CONFIG, ColdEngine, Judge, Twins, serving
from tests.support.typist import Typist

SlowDown = Callable[[float], None]


@pytest.fixture
def slow_down(monkeypatch: pytest.MonkeyPatch) -> SlowDown:
    """Lets each layer of each pass take so many seconds more; not for passes of the judge."""
    advance = ForwardPass.advance

    def slow_down(seconds: float) -> None:
        def advance_slowly(forward: ForwardPass) -> None:
            if threading.current_thread() is not threading.main_thread():
                time.sleep(seconds)
            advance(forward)

        monkeypatch.setattr(ForwardPass, "advance", advance_slowly)

    return slow_down


def _hole(at: str) -> tuple[str, int]:
    """The program without the rest of a line, and where that was."""
    start = PROGRAM.index(at) + len(at)
    return PROGRAM[:start] + PROGRAM[PROGRAM.index("\n", start) :], start


async def test_50_keys_a_second_at_an_engine_that_is_slower(fluent: Twins, slow_down: SlowDown) -> None:
    slow_down(0.015)
    typed = "self.x = add(self.y, i) + add(a, b) + self.length() - point.x + lines + path + file + x + y + 11111"
    async with serving(fluent) as (running, backend):
        screen = Screen(running.session, *_hole("return 10\n        "))
        session = EditSession(running, backend, fluent.cold, screen, Typist(screen, 0, ()))
        answers, num_tasks, num_in_engine = [], list[int](), list[int]()
        for char in typed:
            screen.type(char)
            answers.append(screen.ask())
            await asyncio.sleep(0.02)
            num_tasks.append(len(asyncio.all_tasks()))
            num_in_engine.append(backend.runner.num_running + backend.runner.num_waiting)
        text = await session.text_of(answers[-1])
        session.check_text(text, screen.situation)
        assert text
        earlier = await asyncio.gather(*answers[:-1])
        assert all("error" not in reply for reply in earlier)
        assert len(running.session.replies) == 1 + len(typed)
        assert backend.most_open <= 10 and max(num_in_engine) <= 8
        half = len(typed) // 2
        assert max(num_tasks[half:]) <= max(num_tasks[:half]) + 5
        track = running.server.session._tracks[screen.uri]
        assert len(track.answers._kept) <= 8
        assert session.num["stale"] == 0


async def test_two_buffers_alternately(fluent: Twins, slow_down: SlowDown) -> None:
    """Neither ends the other's request, nor gets its text."""
    slow_down(0.001)
    async with serving(fluent) as (running, backend):
        holes = {"file:///a.py": _hole("        self.x ="), "file:///b.py": _hole("    print(add(1, 2))\n")}
        screens = [Screen(running.session, *hole, uri=uri) for uri, hole in holes.items()]
        sessions = [EditSession(running, backend, fluent.cold, one, Typist(one, 0, ())) for one in screens]
        num_texts = 0
        for chars in zip(" self.x + y", "self.x = add", strict=False):
            for screen, char in zip(screens, chars, strict=True):
                screen.type(char)
            answers = [screen.ask() for screen in screens]
            for session, answer in zip(sessions, answers, strict=True):
                text = await session.text_of(answer)
                session.check_text(text, session.screen.situation)
                num_texts += bool(text)
        assert num_texts >= 12
        assert len({request.session for request in backend.requests}) == 2
        for screen in screens:
            names = {one.session for one in backend.requests if one.suffix == screen.situation.suffix}
            assert len(names) == 1
        assert {entry.outcome for entry in running.server.session.recent} <= {"suggested", "nothing_generated"}


async def test_the_same_file_in_two_windows(fluent: Twins, slow_down: SlowDown) -> None:
    slow_down(0.001)
    async with serving(fluent) as (running, backend), in_process_server(backend, CONFIG) as other:
        await other.session.initialize()
        windows = (running, other)
        screens = [Screen(window.session, *_hole("            print(")) for window in windows]
        sessions = [
            EditSession(window, backend, fluent.cold, screen, Typist(screen, 0, ()))
            for window, screen in zip(windows, screens, strict=True)
        ]
        num_texts = 0
        for chars in zip("(self.x,y", "path.read", strict=True):
            answers = [screen.ask() for screen in screens]  # at the same place, at first
            for session, answer, char in zip(sessions, answers, chars, strict=True):
                text = await session.text_of(answer)
                session.check_text(text, session.screen.situation)
                num_texts += bool(text)
                session.screen.type(char)
        assert num_texts >= 12
        assert len({request.session for request in backend.requests}) == 2
        for window in windows:
            outcomes = {entry.outcome for entry in window.server.session.recent}
            assert outcomes <= {"suggested", "nothing_generated", "repetition"}


async def test_many_documents_come_and_go(fluent: Twins) -> None:
    async with serving(fluent) as (running, backend):
        for number in range(30):
            text, cursor = _hole("        self.x =")
            screen = Screen(running.session, text, cursor, uri=f"file:///{number}.py")
            answer = screen.ask()
            if number % 3:
                await asyncio.sleep(0.001 * (number % 7))
            else:
                await answer
            screen.close()
        await until(lambda: not running.server.session._tracks)
        assert not running.server.session.documents.others("")
        assert len(backend.requests) >= 10


async def test_two_servers_of_one_service(tmp_path: Path) -> None:
    """As processes over stdio: what each shows is what a cold engine says, and neither supersedes the other."""
    model = write_fluent_gguf(tmp_path / "m.gguf")
    (tmp_path / "config.toml").write_text(
        f'[engine]\nmodel = "{model}"\ndtype = "float32"\nmax_context_tokens = 2048\n'
        '[completion]\nmax_line_tokens = 12\nmax_block_tokens = 24\ndebounce_ms = 0\nidle_work = "off"\n'
    )
    cold = ColdEngine(Engine.load(EngineConfig(model=str(model), dtype="float32", max_context_tokens=2048)))
    try:
        async with running_server(tmp_path) as one, running_server(tmp_path) as two:
            screens = []
            for server in (one, two):
                await server.session.initialize(initializationOptions={"midline": {"status": True}})
                await server.session.wait_for_notification("midline/status", timeout_s=60, state="ready")
                screens.append(Screen(server.session, *_hole("            print(")))
            asked: list[CompletionRequest] = []
            judge = Judge(cold)
            num_texts = 0
            for chars in zip("(self.x,y", "path.read", strict=True):
                texts = await asyncio.gather(*(screen.suggested() for screen in screens))
                for screen, text, char in zip(screens, texts, chars, strict=True):
                    num_texts += bool(text)
                    _check(judge, screen, text, asked)
                    screen.type(char)
            assert num_texts >= 12
            for server in (one, two):
                outcomes = {entry["outcome"] for entry in await _recent(server.session)}
                assert outcomes <= {"suggested", "nothing_generated", "repetition"}
                await server.session.shut_down()
                assert await server.wait() == 0
    finally:
        await stop_service(tmp_path)


def _check(judge: Judge, screen: Screen, text: str, asked: list[CompletionRequest]) -> None:
    """Judge a text of a server whose requests are not seen: it must have asked here, or at an earlier key."""
    here = screen.situation
    request = CompletionRequest(here.prefix, here.suffix, anchor=len(here.prefix) - len(here.line_prefix))
    hole = judge.hole(here)
    asked.append(replace(request, sampling=judge.sampling(hole.shape)))
    earlier = [judge.rest(former, hole) for former in asked if former.suffix == here.suffix]
    expected = {judge.fresh(request, hole).text, *(cleaned.text for cleaned in earlier if cleaned is not None)}
    assert text in expected


async def _recent(session: LspSession) -> list[dict[str, object]]:
    params = {"command": "midline.server.showStatus"}
    recent: list[dict[str, object]] = (await session.result("workspace/executeCommand", params))["recent"]
    return recent
