"""After every key, what the server shows is what a model that remembers nothing says, given the same division.

Where text that was typed has other tokens than the model has generated, a model asked at the new cursor might say
something else; then what is shown is exactly the rest of what it said at the earlier one.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from lsp_server.config import MidlineConfig
from tests.support.edit_session import EditSession, naming, total
from tests.support.fluent import PROGRAM
from tests.support.screen import Screen
from tests.support.twins import CONFIG, Twins, serving
from tests.support.typist import Typist

_SNIPPETS = ("self.x", "return", "for i in range(3):\n    print(i)", " = ", "z", "()", "\n", "    ", "\t", "Ж", "# 😀")
_NUM_KEYS = 45
_KEYS = {"_type_on", "_accept", "_accept_word", "_accept_line", "_type_other", "backspace", "_delete_more", "enter"}
_KEYS |= {"_open_bracket", "_jump", "_edit_before", "_edit_after", "undo", "_paste"}


def _program(seed: int) -> tuple[str, int]:
    """The program with a hole, and where that is."""
    lines = PROGRAM.splitlines(keepends=True)
    first = seed * 5 % len(lines) + 4
    return "".join(lines[:first] + lines[first + 4 :]), len("".join(lines[:first]))


async def _play(
    twins: Twins,
    seeds: range,
    play: Callable[[EditSession], Awaitable[None]],
    config: MidlineConfig = CONFIG,
) -> Counter[str]:
    """Sessions one after the other; returns what was counted."""
    sessions: list[EditSession] = []
    for seed in seeds:
        async with serving(twins, config) as (running, backend):
            screen = Screen(running.session, *_program(seed))
            session = EditSession(running, backend, twins.cold, screen, Typist(screen, seed, _SNIPPETS))
            sessions.append(session)
            with naming(seed, session):
                await play(session)
    num = total(sessions)
    assert num["stale"] == 0
    return num


async def test_of_a_model_that_speaks_code(fluent: Twins) -> None:
    num = await _play(fluent, range(10), lambda session: session.play(_NUM_KEYS))
    assert num["model"] >= 120 and num["texts"] >= 160
    assert num["rest"] >= 70 and num["canonical"] >= 70 and num["again"] >= 10
    assert set(num) >= _KEYS


async def test_of_a_model_that_sees_the_suffix_first(suffix_first: Twins) -> None:
    num = await _play(suffix_first, range(50, 54), lambda session: session.play(_NUM_KEYS))
    assert num["model"] >= 50 and num["canonical"] >= 25


async def test_of_a_model_that_speaks_noise(noisy: Twins) -> None:
    num = await _play(noisy, range(100, 104), lambda session: session.play(_NUM_KEYS))
    assert num["model"] >= 50 and num["other tokens"] >= 10


async def test_with_keys_faster_than_answers(fluent: Twins) -> None:
    num = await _play(fluent, range(200, 208), lambda session: session.play_fast(_NUM_KEYS, (0, 0, 0.002, 0.01, 0.03)))
    assert num["in time"] >= 5 and num["too late"] >= 30
    assert num["again"] + num["rest"] >= 60


async def test_with_what_was_computed_while_resting(fluent: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsp_server.completion.idle._SHORT_REST_S", 0.001)
    monkeypatch.setattr("lsp_server.completion.idle._LONG_REST_S", 0.002)
    monkeypatch.setattr("lsp_server.completion.idle._MIN_TYPED_CHARS", 5)
    config = replace(CONFIG, completion=replace(CONFIG.completion, idle_work="always"))
    num_ahead = num_moved = 0

    async def play(session: EditSession) -> None:
        nonlocal num_ahead, num_moved
        await session.play(_NUM_KEYS, rest_share=0.5)
        num_ahead += sum(request.sampling.max_tokens > 0 for request in session.backend.idle_requests)
        num_moved += sum(request.sampling.max_tokens == 0 for request in session.backend.idle_requests)

    num = await _play(fluent, range(300, 305), play, config)
    assert num_ahead >= 10 and num_moved >= 5
    assert num["model"] >= 50 and num["canonical"] >= 40
