import asyncio
from typing import Any

import pytest

from tests.support.lsp_session import in_process_server, until
from tests.support.scripted_backend import ScriptedBackend

AS_IS: dict[str, Any] = {
    "textDocument": {"completion": {"completionItem": {"insertTextModeSupport": {"valueSet": [1, 2]}}}}
}


def params(line: int, character: int) -> dict[str, Any]:
    return {"textDocument": {"uri": "file:///a.py"}, "position": {"line": line, "character": character}}


async def test_is_offered_to_clients_without_inline_completion_only() -> None:
    async with in_process_server(ScriptedBackend()) as running:
        capabilities = (await running.session.initialize({}))["capabilities"]
        assert capabilities["completionProvider"]["triggerCharacters"] == [".", "(", "="]
    async with in_process_server(ScriptedBackend()) as running:
        await running.session.initialize()
        assert (await running.session.request("textDocument/completion", params(0, 0)))["error"]["code"] == -32601


async def test_item_replaces_the_word_and_survives_the_editors_filter() -> None:
    async with in_process_server(ScriptedBackend(("n(xs)",))) as running:
        await running.session.initialize(AS_IS)
        running.session.open("😀 = le")
        result = await running.session.result("textDocument/completion", params(0, 7))
        assert result["isIncomplete"] is True
        (item,) = result["items"]
        assert item["textEdit"] == {
            "range": {"start": {"line": 0, "character": 5}, "end": {"line": 0, "character": 7}},
            "newText": "len(xs)",
        }
        assert (item["label"], item["filterText"], item["insertText"]) == ("len(xs)", "len(xs)", "len(xs)")
        assert (item["kind"], item["insertTextFormat"], item["insertTextMode"], item["sortText"]) == (1, 1, 1, "0")
        assert item["labelDetails"] == {"description": "Midline"}
        assert item["documentation"]["value"] == "```python\nlen(xs)\n```"


async def test_block_uses_the_documents_own_line_ends() -> None:
    async with in_process_server(ScriptedBackend(("a = '```'\n    return a",))) as running:
        await running.session.initialize({})
        running.session.open("def f():\r\n    \r\n")
        (item,) = (await running.session.result("textDocument/completion", params(1, 4)))["items"]
        assert item["textEdit"]["newText"] == "a = '```'\r\n    return a"
        assert item["label"] == "a = '```' ⏎"
        assert item["documentation"]["value"].startswith("````python\n")
        assert "insertTextMode" not in item


LONG = "".join(chr(ord("a") + number % 26) + str(number) for number in range(40))


@pytest.mark.parametrize(
    ("text", "character", "generated", "label"),
    [("if (a) {\n}", 8, "\n    x = 1", "⏎"), ("x = ", 4, LONG, LONG[:79] + "…")],
)
async def test_label_is_one_short_line(text: str, character: int, generated: str, label: str) -> None:
    async with in_process_server(ScriptedBackend((generated,))) as running:
        await running.session.initialize({})
        running.session.open(text)
        (item,) = (await running.session.result("textDocument/completion", params(0, character)))["items"]
        assert item["label"] == label


async def test_slow_model_does_not_hold_up_the_list_for_long() -> None:
    backend = ScriptedBackend(gate=asyncio.Event())
    async with in_process_server(backend) as running:
        await running.session.initialize({})
        running.session.open("x = ")
        result = await asyncio.wait_for(running.session.result("textDocument/completion", params(0, 4)), 15)
        assert result == {"isIncomplete": True, "items": []}
        await until(lambda: backend.num_closed_early == 1)


async def test_unopened_document_is_an_incomplete_empty_list() -> None:
    async with in_process_server(ScriptedBackend()) as running:
        await running.session.initialize({})
        result = await running.session.result("textDocument/completion", params(0, 0))
        assert result == {"isIncomplete": True, "items": []}
