import asyncio

import pytest

from lsp_server.completion.request import EmptyReason
from tests.support.lsp_session import INLINE_CLIENT, InProcessServer, in_process_server, inline_params, until
from tests.support.scripted_backend import ScriptedBackend


def recent(running: InProcessServer) -> list[str]:
    return [entry.outcome for entry in running.server.session.recent]


async def test_item_has_text_and_an_empty_range_at_the_cursor() -> None:
    async with in_process_server(ScriptedBackend(("1 + 2",))) as running:
        await running.session.initialize()
        running.session.open("😀x = ")
        here = {"line": 0, "character": 6}
        item = {"insertText": "1 + 2", "range": {"start": here, "end": here}}
        assert (await running.session.inline(0, 6))["result"] == {"items": [item]}


@pytest.mark.parametrize(
    ("line", "character", "clamped"),
    [(0, 1, (0, 0)), (0, 999, (0, 6)), (99, 999, (1, 0))],  # inside the emoji, behind the line, below the document
)
async def test_an_odd_position_is_answered_with_the_one_that_was_meant(
    line: int, character: int, clamped: tuple[int, int]
) -> None:
    async with in_process_server(ScriptedBackend(("1",))) as running:
        await running.session.initialize()
        running.session.open("😀x = \n")
        params = inline_params(line, character)
        params["context"]["triggerKind"] = 1  # asked by hand, also in the middle of the line
        (item,) = (await running.session.result("textDocument/inlineCompletion", params))["items"]
        place = {"line": clamped[0], "character": clamped[1]}
        assert item["range"] == {"start": place, "end": place}


async def test_block_has_lf_also_in_a_crlf_document() -> None:
    backend = ScriptedBackend(("a = 1\n    return a",))
    async with in_process_server(backend) as running:
        await running.session.initialize()
        running.session.open("def f():\r\n    \r\nx = 1\r\n")
        (item,) = (await running.session.inline(1, 4))["result"]["items"]
        assert item["insertText"] == "a = 1\n    return a"
        assert backend.requests[0].prefix == "def f():\n    "
        assert backend.requests[0].suffix == "\nx = 1\n"


@pytest.mark.parametrize(
    ("name", "text", "end"),
    [
        ("Visual Studio Code", "a):", 5),
        ("code-server", "a):", 5),
        ("coc.nvim", "a):", 5),
        ("Neovim", "a", 4),
        ("", "a", 4),
    ],
)
async def test_closers_are_covered_where_the_client_can_draw_it(name: str, text: str, end: int) -> None:
    async with in_process_server(ScriptedBackend(("a):",))) as running:
        await running.session.initialize(name=name)
        running.session.open("f(x,)")
        (item,) = (await running.session.inline(0, 4))["result"]["items"]
        assert item["insertText"] == text
        assert item["range"]["start"] == {"line": 0, "character": 4}
        assert item["range"]["end"] == {"line": 0, "character": end}


async def test_selected_entry_of_the_editors_list_is_continued() -> None:
    backend = ScriptedBackend(("(xs)",))
    async with in_process_server(backend) as running:
        await running.session.initialize()
        running.session.open("x = so")
        place = {"start": {"line": 0, "character": 4}, "end": {"line": 0, "character": 6}}
        params = inline_params(0, 6)
        params["context"]["selectedCompletionInfo"] = {"range": place, "text": "sorted"}
        result = await running.session.result("textDocument/inlineCompletion", params)
        assert result["items"] == [{"insertText": "sorted(xs)", "range": place}]
        assert backend.requests[0].prefix == "x = sorted"


async def test_client_cancel_is_answered_and_reaches_the_backend() -> None:
    backend = ScriptedBackend(gate=asyncio.Event())
    async with in_process_server(backend) as running:
        await running.session.initialize()
        running.session.open("x = ")
        request = running.session.inline(0, 4)
        await until(lambda: backend.num_open == 1)
        running.session.cancel(request)
        assert (await asyncio.wait_for(request, 10))["error"]["code"] == -32800
        await until(lambda: backend.num_open == 0)
        assert backend.num_closed_early == 1
        assert recent(running) == [EmptyReason.CANCELLED.value]


async def test_newer_request_answers_the_older_with_an_empty_list_and_joins_its_stream() -> None:
    backend = ScriptedBackend(("1",), gate=asyncio.Event())
    async with in_process_server(backend) as running:
        await running.session.initialize()
        running.session.open("x = ")
        older = running.session.inline(0, 4)
        await until(lambda: backend.num_open == 1)
        newer = running.session.inline(0, 4)
        assert (await asyncio.wait_for(older, 10))["result"] == {"items": []}
        assert backend.gate is not None
        backend.gate.set()
        assert len((await newer)["result"]["items"]) == 1
        assert (len(backend.requests), backend.num_closed_early) == (1, 0)
        assert recent(running) == [EmptyReason.SUPERSEDED.value, "suggested"]


@pytest.mark.parametrize("event", ["change", "close", "reopen"])
async def test_document_that_changes_or_closes_ends_its_request(event: str) -> None:
    backend = ScriptedBackend(gate=asyncio.Event())
    async with in_process_server(backend) as running:
        await running.session.initialize()
        running.session.open("x = ")
        request = running.session.inline(0, 4)
        await until(lambda: backend.num_open == 1)
        if event == "change":
            running.session.change("1", 2, at=(0, 4))
        elif event == "close":
            running.session.notify("textDocument/didClose", {"textDocument": {"uri": "file:///a.py"}})
        else:
            running.session.open("y")
        assert (await asyncio.wait_for(request, 10))["result"] == {"items": []}
        await until(lambda: backend.num_closed_early == 1)


async def test_every_keystroke_cancels_down_to_the_backend_and_every_request_has_one_reply() -> None:
    backend = ScriptedBackend(("1",), gate=asyncio.Event())
    async with in_process_server(backend) as running:
        await running.session.initialize()
        running.session.open("")
        requests = []
        for number, char in enumerate("value = compute"):
            running.session.change(char, number + 2, at=(0, number))
            requests.append(running.session.inline(0, number + 1))
            await until(lambda expected=number + 1: len(backend.requests) == expected)
        await until(lambda: backend.num_closed_early == 14)
        assert backend.gate is not None
        backend.gate.set()
        replies = await asyncio.gather(*requests)
        assert [len(reply["result"]["items"]) for reply in replies] == [0] * 14 + [1]
        assert (backend.num_open, backend.num_closed_early) == (0, 14)
        assert len(running.session.replies) == 1 + 15


async def test_unopened_document_is_answered() -> None:
    async with in_process_server(ScriptedBackend()) as running:
        await running.session.initialize()
        assert (await running.session.inline(0, 0, uri="untitled:Untitled-1"))["result"] == {"items": []}
        assert recent(running) == [EmptyReason.DOCUMENT_CLOSED.value]


async def test_lone_surrogates_reach_the_backend_as_replacement_characters() -> None:
    backend = ScriptedBackend(("1",))
    async with in_process_server(backend) as running:
        await running.session.initialize()
        running.session.send_bytes(
            b'{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":{"uri":"file:///a.py",'
            b'"languageId":"python","version":1,"text":"s = \'\\ud800\'\\nx = "}}}'
        )
        assert len((await running.session.inline(1, 4))["result"]["items"]) == 1
        assert backend.requests[0].prefix == "s = '\ufffd'\nx = "


async def test_giant_line_is_refused_and_the_server_goes_on() -> None:
    async with in_process_server(ScriptedBackend(("1",))) as running:
        await running.session.initialize()
        running.session.open("x" * 200_000 + "\ny = ")
        assert (await running.session.inline(0, 100_000))["result"] == {"items": []}
        assert len((await running.session.inline(1, 4))["result"]["items"]) == 1
        assert recent(running) == [EmptyReason.LINE_TOO_LONG.value, "suggested"]


@pytest.mark.parametrize(("encoding", "character"), [("utf-8", 8), ("utf-16", 6), ("utf-32", 5)])
async def test_positions_count_in_the_negotiated_encoding(encoding: str, character: int) -> None:
    backend = ScriptedBackend(("1",))
    async with in_process_server(backend) as running:
        result = await running.session.initialize({**INLINE_CLIENT, "general": {"positionEncodings": [encoding]}})
        assert result["capabilities"]["positionEncoding"] == encoding
        running.session.open("😀a = b = c")
        await running.session.inline(0, character)
        assert backend.requests[0].prefix == "😀a = "
