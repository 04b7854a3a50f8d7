"""``midline/didMoveCursor``: what it starts, and that nonsense is ignored."""

import asyncio
from typing import Any

import pytest

from engine.request import Lane
from lsp_server.completion import idle
from lsp_server.config import CompletionConfig, MidlineConfig
from tests.support.lsp_session import in_process_server, until
from tests.support.scripted_backend import ScriptedBackend

_ALWAYS = MidlineConfig(completion=CompletionConfig(debounce_ms=0, idle_work="always"))
_CURSOR = "midline/didMoveCursor"


def _place(uri: Any = "file:///a.py", line: Any = 0, character: Any = 4) -> dict[str, Any]:
    return {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}


@pytest.fixture(autouse=True)
def _short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_SHORT_REST_S", 0.02)


async def test_the_prompt_of_the_place_is_computed_and_the_next_key_ends_that() -> None:
    backend = ScriptedBackend(("",), gate=asyncio.Event())
    async with in_process_server(backend, _ALWAYS) as server:
        await server.session.initialize()
        server.session.open("x = \n")
        server.session.notify(_CURSOR, _place())
        await until(lambda: backend.num_open)
        assert (backend.requests[0].lane, backend.requests[0].sampling.max_tokens) == (Lane.BULK, 0)
        server.session.change("1", 2, at=(0, 4))
        await until(lambda: (backend.num_open, backend.num_closed_early) == (0, 1))


@pytest.mark.parametrize(
    "params",
    [
        None,
        [],
        {},
        {"textDocument": {"uri": "file:///a.py"}},
        _place(uri=3),
        _place(line="1"),
        _place(line=-1),
        _place(character=True),
        _place(uri="file:///not/open.py"),
    ],
)
async def test_nonsense_is_ignored(params: Any) -> None:
    backend = ScriptedBackend()
    async with in_process_server(backend, _ALWAYS) as server:
        await server.session.initialize()
        server.session.open("x = \n")
        server.session.notify(_CURSOR, params)
        reply = await server.session.inline(0, 4)
        assert reply["result"]["items"]
        assert backend.requests[0].lane is Lane.INTERACTIVE
