"""Every request gets one reply, whatever it looks like, and the server lives on."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from lsprotocol import types

from engine.request import CompletionRequest, Delta, Finished, FinishReason, Timing, Usage
from lsp_server.protocol import choose_encoding, make_converter
from tests.support.lsp_session import InProcessServer, in_process_server, inline_params
from tests.support.scripted_backend import ScriptedBackend

INLINE = "textDocument/inlineCompletion"


@pytest.fixture
async def running() -> AsyncIterator[InProcessServer]:
    async with in_process_server(ScriptedBackend(("1",))) as server:
        yield server


async def assert_alive(running: InProcessServer) -> None:
    running.session.open("x = ", version=99)
    assert (await running.session.inline(0, 4))["result"]["items"][0]["insertText"] == "1"


async def test_inline_completion_is_advertised(running: InProcessServer) -> None:
    capabilities = (await running.session.initialize())["capabilities"]
    assert capabilities["inlineCompletionProvider"] == {}
    assert "completionProvider" not in capabilities
    assert capabilities["textDocumentSync"]["openClose"] is True
    assert capabilities["textDocumentSync"]["change"] == 2


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        [],
        "text",
        {**inline_params(0, 0), "position": None},
        {**inline_params(0, 0), "position": {"line": "zero", "character": 0}},
        {**inline_params(0, 0), "position": {"line": -1, "character": 0}},
        {**inline_params(0, 0), "position": {"line": 2**40, "character": 0}},
        {**inline_params(0, 0), "textDocument": {}},
        {**inline_params(0, 0), "context": {}},
        {**inline_params(0, 0), "context": {"triggerKind": "1"}},
    ],
)
async def test_malformed_parameters_are_invalid_params(running: InProcessServer, params: Any) -> None:
    await running.session.initialize()
    reply = await running.session.request(INLINE, params)
    assert reply["error"]["code"] == -32602
    assert "data" not in reply["error"]
    await assert_alive(running)


@pytest.mark.parametrize("trigger_kind", [0, 1, 2, 3, 99])
async def test_any_trigger_kind_is_answered(running: InProcessServer, trigger_kind: int) -> None:
    await running.session.initialize()
    running.session.open("x = ")
    assert len((await running.session.inline(0, 4, trigger_kind=trigger_kind))["result"]["items"]) == 1


def test_old_scale_of_trigger_kinds_is_known_once_a_zero_was_seen() -> None:
    def kinds(values: list[int]) -> list[str]:
        converter = make_converter()
        return [converter.structure(value, types.InlineCompletionTriggerKind).name for value in values]

    assert kinds([1, 2, 1]) == ["Invoked", "Automatic", "Invoked"]
    assert kinds([1, 0, 1, 2]) == ["Invoked", "Invoked", "Automatic", "Automatic"]


@pytest.mark.parametrize("method", ["textDocument/hover", "$/unknown", "midline/nothing", ""])
async def test_unknown_request_is_method_not_found(running: InProcessServer, method: str) -> None:
    await running.session.initialize()
    assert (await running.session.request(method, {"a": 1}))["error"]["code"] == -32601
    await assert_alive(running)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("textDocument/didOpen", {}),
        ("textDocument/didOpen", None),
        ("textDocument/didChange", {"textDocument": {"uri": "file:///a.py"}, "contentChanges": "x"}),
        ("textDocument/didChange", {"textDocument": {"uri": "file:///no.py", "version": 2}, "contentChanges": []}),
        ("textDocument/didClose", {"textDocument": None}),
        ("textDocument/didClose", {"textDocument": {"uri": "file:///never-opened.py"}}),
        ("$/cancelRequest", {}),
        ("$/cancelRequest", {"id": 4711}),
        ("$/setTrace", {"value": "loud"}),
        ("workspace/didChangeConfiguration", {"settings": 3}),
        ("textDocument/didShowCompletion", {"item": {"type_name": 1}}),
        ("textDocument/didPartiallyAcceptCompletion", {"item": {}, "acceptedLength": 3}),
        ("textDocument/didFocus", {"textDocument": {"uri": "file:///a.py"}}),
        ("unknown/notification", {"a": [1]}),
    ],
)
async def test_notification_never_harms_nor_is_answered(running: InProcessServer, method: str, params: Any) -> None:
    await running.session.initialize()
    running.session.notify(method, params)
    await assert_alive(running)
    assert len(running.session.replies) == 2
    assert [message for message in running.session.notifications if message["method"] == "window/showMessage"] == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b'"text"', -32600),
        (b'{"id": 1, "method": "x"}', -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "shutdown"}', -32600),
        (b'{"jsonrpc": "2.0", "id": [1], "method": "shutdown"}', -32600),
    ],
)
async def test_message_that_is_none_is_refused(running: InProcessServer, body: bytes, code: int) -> None:
    await running.session.initialize()
    reply = running.session.expect(1 if b'"id": 1' in body else None)
    running.session.send_bytes(body)
    assert (await asyncio.wait_for(reply, 10))["error"]["code"] == code
    await assert_alive(running)


async def test_reply_to_no_request_is_ignored(running: InProcessServer) -> None:
    await running.session.initialize()
    running.session.send({"jsonrpc": "2.0", "id": "nobody", "result": 1})
    running.session.send({"jsonrpc": "2.0", "id": {}, "error": {}})
    await assert_alive(running)


async def test_requests_before_initialize_and_after_shutdown_are_refused(running: InProcessServer) -> None:
    assert (await running.session.request(INLINE, inline_params(0, 0)))["error"]["code"] == -32002
    running.session.notify("textDocument/didOpen", {"ignored": True})
    await running.session.initialize()
    assert (await running.session.request("initialize", {"capabilities": {}}))["error"]["code"] == -32600
    await running.session.result("shutdown")
    assert (await running.session.request(INLINE, inline_params(0, 0)))["error"]["code"] == -32600
    running.session.notify("exit")
    assert await running.ended == 0


async def test_shutdown_with_parameters_of_any_kind(running: InProcessServer) -> None:
    await running.session.initialize()
    assert (await running.session.request("shutdown", {}))["result"] is None


async def test_exit_without_shutdown_and_end_of_stream_are_failures() -> None:
    for with_exit in (True, False):
        async with in_process_server(ScriptedBackend()) as running:
            await running.session.initialize()
            if with_exit:
                running.session.notify("exit")
            else:
                running.to_server.close()
            assert await asyncio.wait_for(running.ended, 10) == 1


async def test_pending_request_is_answered_when_shutdown_and_exit_come_together() -> None:
    async with in_process_server(ScriptedBackend(gate=asyncio.Event())) as running:
        await running.session.initialize()
        running.session.open("x = ")
        pending = running.session.inline(0, 4)
        shutdown = running.session.start_request("shutdown")
        running.session.notify("exit")
        assert (await asyncio.wait_for(pending, 10)).get("result", {"items": []})["items"] == []
        assert (await asyncio.wait_for(shutdown, 10))["result"] is None
        assert await running.ended == 0


class Broken(ScriptedBackend):
    async def ensure_ready(self) -> Any:
        raise RuntimeError("secret = 'text of the buffer'")


async def test_internal_failure_is_an_empty_list_and_a_message_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with in_process_server(Broken()) as running:
        await running.session.initialize()
        running.session.open("secret = ")
        assert (await running.session.inline(0, 9))["result"] == {"items": []}
        assert (await running.session.inline(0, 9))["result"] == {"items": []}
        shown = await running.session.wait_for_notification("window/showMessage")
        assert "internal error" in shown["message"]
        assert [m["method"] for m in running.session.notifications].count("window/showMessage") == 1
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


async def test_failing_handler_gives_no_traceback_away(caplog: pytest.LogCaptureFixture) -> None:
    async with in_process_server(ScriptedBackend()) as running:
        await running.session.initialize()

        async def fail(params: Any) -> None:
            raise RuntimeError("secret text of the buffer")

        running.server.feature("midline/fail")(fail)
        error = (await running.session.request("midline/fail", {}))["error"]
        assert error == {"code": -32603, "message": "internal error; see the server's log"}
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("lsp_server")]
    assert len(ours) == 1
    assert ours[0].startswith("a handler failed: RuntimeError at ")
    assert "secret" not in ours[0]


async def test_text_is_logged_at_trace_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="lsp_server")
    async with in_process_server(ScriptedBackend(("sesame",))) as running:
        await running.session.initialize()
        running.session.open("open = ")
        running.session.change("open = sesa", 2)
        await running.session.inline(0, 11)
        await running.session.request(INLINE, {"text": "sesame"})
        running.session.notify("textDocument/didOpen", {"text": "sesame"})
        await running.session.result("shutdown")
    assert "sesame" not in caplog.text
    assert "malformed" in caplog.text


async def test_messages_sent_in_one_go_see_the_document_of_their_time() -> None:
    backend = Echo()
    async with in_process_server(backend) as running:
        await running.session.initialize()
        running.session.open("a = ", uri="file:///1")
        first = running.session.inline(0, 4, uri="file:///1")
        running.session.change("b = ", 2, uri="file:///1")
        second = running.session.inline(0, 4, uri="file:///1")
        assert (await first)["result"] == {"items": []}
        assert (await second)["result"]["items"][0]["insertText"] == "b = !"
    assert [request.prefix for request in backend.requests][-1] == "b = "


class Echo(ScriptedBackend):
    async def stream(self, request: CompletionRequest) -> Any:
        self.requests.append(request)
        yield Delta(request.prefix + "!", finished=Finished(FinishReason.STOP, Usage(), Timing()))


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (None, "utf-16"),
        ([], "utf-16"),
        (["utf-16"], "utf-16"),
        (["utf-8", "utf-32", "utf-16"], "utf-16"),
        (["utf-8"], "utf-8"),
        (["utf-7", "utf-32", "utf-8"], "utf-32"),
        (["utf-7"], "utf-16"),
    ],
)
def test_position_encoding(offered: list[str] | None, chosen: str) -> None:
    general = None if offered is None else types.GeneralClientCapabilities(position_encodings=offered)  # type: ignore[arg-type]
    assert choose_encoding(types.ClientCapabilities(general=general)) == chosen


async def test_pygls_keeps_no_copy_of_documents(running: InProcessServer) -> None:
    await running.session.initialize()
    running.session.open("x = ")
    await running.session.inline(0, 4)
    assert dict(running.server.workspace.text_documents) == {}
