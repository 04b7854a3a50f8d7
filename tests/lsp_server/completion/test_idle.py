"""What is computed while the user rests: it is found by the next key, gives way to it, and off means off."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from engine.request import Lane
from lsp_server.backends.base import BackendState
from lsp_server.completion import idle
from lsp_server.completion.anchor import anchored
from lsp_server.completion.pipeline import Track, complete
from lsp_server.completion.request import Source
from lsp_server.config import CompletionConfig, MidlineConfig
from lsp_server.documents import Position
from lsp_server.session import Cursor, Session
from tests.lsp_server.completion.test_answers import Knowing
from tests.support.cursor import situation
from tests.support.lsp_session import until
from tests.support.scripted_backend import ScriptedBackend

_CONFIG = MidlineConfig(completion=CompletionConfig(debounce_ms=0, idle_work="always"))
_OFF = MidlineConfig(completion=CompletionConfig(debounce_ms=0, idle_work="off"))
_URI = "file:///a.py"


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_SHORT_REST_S", 0.02)
    monkeypatch.setattr(idle, "_LONG_REST_S", 0.04)


class _Link:
    def send_status(self, status: object) -> None: ...

    def show_warning(self, text: str) -> None: ...

    async def pull_settings(self) -> None: ...


async def test_what_follows_an_acceptance_is_there_when_it_comes() -> None:
    backend, track = Knowing(), Track()
    place = situation("def area(shapes):\n    total = 0\n    for shape in shapes║")
    first = await complete(place, _CONFIG, backend, track=track)
    assert first.text == ":"
    await idle.after_suggestion(place, first.text, _CONFIG, backend, track)
    assert [request.lane for request in backend.requests] == [Lane.INTERACTIVE, Lane.BULK]
    assert backend.requests[1].session == ""
    after = await complete(replace(place, prefix=place.prefix + first.text), _CONFIG, backend, track=track)
    assert after.source is Source.TYPED and after.text.startswith("\n        if shape")
    entered = replace(place, prefix=place.prefix + first.text + "\n        ")
    next_line = await complete(entered, _CONFIG, backend, track=track)
    assert next_line.source is Source.TYPED and next_line.text.startswith("if shape")
    assert len(backend.requests) == 2
    cold = await complete(replace(place, prefix=place.prefix + first.text), _CONFIG, Knowing())
    assert after.text == cold.text


@pytest.mark.parametrize(
    ("drawn", "text", "following"),
    [
        ("def f():\n    x = ║\n", "1", ["def f():\n    x = 1", "def f():\n    x = 1\n    "]),
        ("def f():\n    if x║\n", ":", ["def f():\n    if x:", "def f():\n    if x:\n        "]),
        ("if x:\n  y\nif z║\n", ":", ["if x:\n  y\nif z:", "if x:\n  y\nif z:\n  "]),
        ("\tx = 1║\n", "", ["\tx = 1\n\t"]),
        ("x:║\n", "", ["x:\n    "]),
        ("f(║)\n", "a", ["f(a"]),
        ("    ║\n", "", []),
    ],
)
def test_where_the_cursor_will_be(drawn: str, text: str, following: list[str]) -> None:
    assert [place.prefix for place in idle._likely_next(situation(drawn), text)] == following


async def test_it_is_asked_once_and_joined_while_it_runs() -> None:
    backend, track = ScriptedBackend(("1", "\n"), gate=asyncio.Event()), Track()
    place = situation("x = ║\ny\n")
    track.anchor = anchored(None, place, _CONFIG.context)
    following = asyncio.create_task(idle.after_suggestion(place, "y + ", _CONFIG, backend, track))
    await until(lambda: backend.num_open)
    accepted = asyncio.create_task(complete(situation("x = y + ║\ny\n"), _CONFIG, backend, track=track))
    await asyncio.sleep(0)
    following.cancel()
    assert backend.gate is not None
    backend.gate.set()
    suggestion = await asyncio.wait_for(accepted, 10)
    assert (suggestion.source, suggestion.text) == (Source.RUNNING, "1")
    assert len(backend.requests) == 1


async def test_the_next_key_ends_it() -> None:
    backend, track = ScriptedBackend(("a", "b"), gate=asyncio.Event()), Track()
    place = situation("x = ║\ny\n")
    track.anchor = anchored(None, place, _CONFIG.context)
    following = asyncio.create_task(idle.after_suggestion(place, "y + ", _CONFIG, backend, track))
    await until(lambda: backend.num_open)
    following.cancel()
    await until(lambda: (backend.num_open, backend.num_closed_early) == (0, 1))


async def test_a_long_typed_segment_moves_the_anchor_in_a_rest_and_then_costs_the_key_nothing() -> None:
    backend, track = Knowing(program="a = 1\n" * 200), Track()
    first = situation("a = 1\na = ║\n")
    await complete(first, _CONFIG, backend, track=track)
    place = replace(first, prefix=first.prefix + "1\na = 1\n" * 60 + "a = ")
    old = track.anchor
    await complete(place, _CONFIG, backend, track=track)
    assert track.anchor is old
    await idle.after_suggestion(place, "", _CONFIG, backend, track)
    assert track.anchor is not old and track.anchor is not None
    assert place.prefix == track.anchor.before + "a = "
    warm_up = backend.requests[-1]
    assert (warm_up.lane, warm_up.sampling.max_tokens, warm_up.session) == (Lane.BULK, 0, "")
    assert warm_up.anchor == len(warm_up.prefix) - len("a = ")
    asked = await complete(place, _CONFIG, backend, track=track)
    assert not asked.is_reanchored


async def test_a_short_segment_stays() -> None:
    backend, track = Knowing(), Track()
    place = situation("def area(shapes):\n    total = ║")
    await complete(place, _CONFIG, backend, track=track)
    anchor = track.anchor
    await idle.after_suggestion(place, "", _CONFIG, backend, track)
    assert track.anchor is anchor
    assert all(request.sampling.max_tokens for request in backend.requests)


async def test_an_anchor_that_has_moved_meanwhile_is_not_moved_again() -> None:
    backend, track = ScriptedBackend((), gate=None), Track()
    place = situation("x = ║\n")
    moving = asyncio.create_task(idle.after_move(place, _CONFIG, backend, track))
    await until(lambda: backend.requests)
    jumped = track.anchor = anchored(None, situation("║x\n"), _CONFIG.context)
    await moving
    assert track.anchor is jumped


@pytest.mark.parametrize("state", [state for state in BackendState if state is not BackendState.READY])
async def test_no_engine_is_started_for_it(state: BackendState) -> None:
    backend, track = ScriptedBackend(state=state), Track()
    await idle.after_move(situation("x = ║\n"), _CONFIG, backend, track)
    await idle.after_suggestion(situation("x = ║\n"), "1", _CONFIG, backend, track)
    assert (backend.num_starts, backend.requests) == (0, [])


@pytest.mark.parametrize(
    ("mode", "is_on_battery", "may"),
    [
        ("off", False, False),
        ("on_power", False, True),
        ("on_power", True, False),
        ("always", True, True),
    ],
)
def test_settings_and_battery_decide(
    mode: str, is_on_battery: bool, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "is_on_battery", lambda: is_on_battery)
    config = MidlineConfig(completion=CompletionConfig(idle_work=mode))
    assert idle.may_work(config) is may
    assert not idle.may_work(replace(config, enabled=False))


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    backend = Knowing()
    session = Session(_CONFIG, lambda config, on_status: backend, _Link())
    session.documents.open(_URI, "def area(shapes):\n    total = 0\n    for shape in shapes", "python", 1)
    yield session
    await session.aclose()


def _requests(session: Session) -> list[Lane]:
    assert isinstance(session.backend, Knowing)
    return [request.lane for request in session.backend.requests]


async def test_a_session_works_ahead_after_a_suggestion_and_stops_at_a_change(session: Session) -> None:
    suggestion = await session.suggest(_URI, Cursor(Position(2, 23)))
    assert suggestion.text == ":"
    await until(lambda: _requests(session) == [Lane.INTERACTIVE, Lane.BULK])
    await session.suggest(_URI, Cursor(Position(2, 23)))
    assert session._idle is not None
    session.end_idle_work()
    assert session._idle is None


async def test_a_session_warms_a_place_where_the_cursor_rests_once(session: Session) -> None:
    session.move_cursor(_URI, Position(1, 13))
    await until(lambda: _requests(session) == [Lane.BULK])
    await asyncio.sleep(0)
    await until(lambda: session._track(_URI).anchor is not None)
    session.move_cursor(_URI, Position(1, 13))
    session.move_cursor("file:///not/open.py", Position(0, 0))
    await asyncio.sleep(0.1)
    assert _requests(session) == [Lane.BULK]
    suggestion = await session.suggest(_URI, Cursor(Position(1, 13)))
    assert not suggestion.is_reanchored


async def test_off_starts_not_even_a_timer() -> None:
    backend = Knowing()
    session = Session(_OFF, lambda config, on_status: backend, _Link())
    session.documents.open(_URI, "def area(shapes):\n    total = ", "python", 1)
    await session.suggest(_URI, Cursor(Position(1, 12)))
    session.move_cursor(_URI, Position(0, 3))
    assert session._idle is None and not session._background
    await session.aclose()


async def test_other_open_files_are_drafts_but_never_secret_ones() -> None:
    backend = ScriptedBackend()
    session = Session(_OFF, lambda config, on_status: backend, _Link())
    for number, name in enumerate(("a.py", "b.py", "c.py", "d.py", "e.py", ".env")):
        session.documents.open(f"file:///{name}", f"text {number}", "python", 1)
    session.documents.change("file:///a.py", [], 2)
    session.documents.open(_URI.replace("a.py", "x.py"), "x = ", "python", 1)
    await session.suggest(_URI.replace("a.py", "x.py"), Cursor(Position(0, 4)))
    assert backend.requests[0].corpus == ("text 2", "text 3", "text 4", "text 0")
    await session.aclose()
