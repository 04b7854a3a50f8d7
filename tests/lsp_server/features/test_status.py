import asyncio
from typing import Any

import pytest

from lsp_server.backends.base import BackendState
from lsp_server.config import MidlineConfig
from tests.support.lsp_session import INLINE_CLIENT, NO_DEBOUNCE, in_process_server, until
from tests.support.scripted_backend import ScriptedBackend

WANTS_STATUS: dict[str, Any] = {"initializationOptions": {"midline": {"status": True}}}
MISSING = "model scripted is not downloaded; run: midline models pull scripted"


def count(session: Any, method: str) -> int:
    return [message["method"] for message in session.notifications].count(method)


async def test_status_is_sent_on_changes_to_a_client_that_wants_it() -> None:
    backend = ScriptedBackend(("1",), state=BackendState.LOADING)
    async with in_process_server(backend) as running:
        await running.session.initialize(**WANTS_STATUS)
        await running.session.wait_for_notification("midline/status", state="loading", model="scripted")
        running.session.open("x = ")
        asking = asyncio.ensure_future(running.session.inline(0, 4))
        await until(lambda: backend.num_starts > 2)
        backend.state = BackendState.READY
        assert len((await asking)["result"]["items"]) == 1
        await running.session.inline(0, 4)
        await running.session.wait_for_notification("midline/status", state="ready", message="")
        assert count(running.session, "midline/status") == 2
        assert count(running.session, "window/showMessage") == 0


async def test_missing_model_is_shown_once_with_its_remedy_to_any_other_client() -> None:
    backend = ScriptedBackend(state=BackendState.MODEL_MISSING, message=MISSING)
    async with in_process_server(backend) as running:
        await running.session.initialize()
        running.session.open("x = ")
        for _ in range(3):
            assert (await running.session.inline(0, 4))["result"] == {"items": []}
        shown = await running.session.wait_for_notification("window/showMessage")
        assert shown == {"type": 2, "message": f"Midline: {MISSING}"}
        assert count(running.session, "window/showMessage") == 1
        assert count(running.session, "midline/status") == 0


async def test_experimental_capability_asks_for_status_too() -> None:
    async with in_process_server(ScriptedBackend()) as running:
        await running.session.initialize({**INLINE_CLIENT, "experimental": {"midline": {"status": True}}})
        await running.session.wait_for_notification("midline/status", state="ready", message="")
        assert count(running.session, "midline/status") == 1


async def test_off_means_nothing_is_started() -> None:
    backend = ScriptedBackend()
    async with in_process_server(backend, MidlineConfig(enabled=False)) as running:
        await running.session.initialize(**WANTS_STATUS)
        running.session.open("x = ")
        assert (await running.session.inline(0, 4))["result"] == {"items": []}
        await running.session.result("workspace/executeCommand", {"command": "midline.server.restartEngine"})
        status = await running.session.result("workspace/executeCommand", {"command": "midline.server.showStatus"})
        (recent,) = status.pop("recent")
        assert status == {"state": "disabled", "model": "scripted", "message": "", "bulk": ""}
        assert (recent["outcome"], recent["source"], recent["prompt_tokens"]) == ("disabled", "none", 0)
        assert (backend.num_starts, backend.num_restarts, backend.requests) == (0, 0, [])


@pytest.mark.parametrize("arguments", [{}, {"arguments": []}, {"arguments": [{"x": 1}]}])
async def test_commands(arguments: dict[str, Any]) -> None:
    backend = ScriptedBackend(("1",))
    async with in_process_server(backend) as running:
        result = await running.session.initialize()
        names = ["midline.server.restartEngine", "midline.server.showStatus"]
        assert {*names} < {*result["capabilities"]["executeCommandProvider"]["commands"]}
        for name in names:
            status = await running.session.result("workspace/executeCommand", {"command": name, **arguments})
            assert status["state"] == "ready"
        assert backend.num_restarts == 1
        error = (await running.session.request("workspace/executeCommand", {"command": "rm"}))["error"]
        assert error["code"] == -32602
        assert "midline.server.showStatus" in error["message"]


async def test_settings_of_the_editor_apply_and_bad_ones_are_shown_once_and_ignored() -> None:
    backend = ScriptedBackend(("1",))
    async with in_process_server(backend) as running:
        bad = {"completion": {"debounce_ms": -1}}
        await running.session.initialize(initializationOptions={"midline": {"settings": bad}})
        for _ in range(2):
            running.session.notify("workspace/didChangeConfiguration", {"settings": {"midline": bad}})
        shown = await running.session.wait_for_notification("window/showMessage")
        assert "completion.debounce_ms is -1; it must be 0 or more" in shown["message"]
        assert running.server.session.config == NO_DEBOUNCE
        good = {"completion": {"max_line_tokens": 7}}
        running.session.notify("workspace/didChangeConfiguration", {"settings": {"midline": good}})
        running.session.open("x = ")
        await running.session.inline(0, 4)
        assert backend.requests[0].sampling.max_tokens == 7
        assert count(running.session, "window/showMessage") == 1


async def test_turning_off_and_on_again_starts_nothing_before() -> None:
    backend = ScriptedBackend(("1",))
    options = {"midline": {"settings": {"enabled": False}}}
    async with in_process_server(backend) as running:
        await running.session.initialize(initializationOptions=options)
        running.session.open("x = ")
        assert (await running.session.inline(0, 4))["result"] == {"items": []}
        assert backend.num_starts == 0
        running.session.notify("workspace/didChangeConfiguration", {"settings": {"midline": {}}})
        await until(lambda: backend.num_starts > 0)
        assert len((await running.session.inline(0, 4))["result"]["items"]) == 1


async def test_turning_off_ends_what_runs() -> None:
    backend = ScriptedBackend(gate=asyncio.Event())
    async with in_process_server(backend) as running:
        await running.session.initialize()
        running.session.open("x = ")
        request = running.session.inline(0, 4)
        await until(lambda: backend.num_open == 1)
        running.session.notify("workspace/didChangeConfiguration", {"settings": {"midline": {"enabled": False}}})
        assert (await asyncio.wait_for(request, 10))["result"] == {"items": []}
        await until(lambda: backend.num_open == 0)
        assert [entry.outcome for entry in running.server.session.recent] == ["disabled"]


async def test_null_settings_are_pulled() -> None:
    async with in_process_server(ScriptedBackend()) as running:
        await running.session.initialize({**INLINE_CLIENT, "workspace": {"configuration": True}})
        running.session.notify("workspace/didChangeConfiguration", {"settings": None})
        asked = await running.session.wait_for_notification("workspace/configuration")
        assert asked["items"] == [{"section": "midline"}]
        message = next(m for m in running.session.notifications if m["method"] == "workspace/configuration")
        running.session.send({"jsonrpc": "2.0", "id": message["id"], "result": [{"enabled": False}]})
        await until(lambda: not running.server.session.config.enabled)


async def test_changed_engine_settings_make_a_new_backend() -> None:
    first = ScriptedBackend()
    async with in_process_server(first) as running:
        await running.session.initialize()
        settings = {"midline": {"engine": {"model": "other"}}}
        running.session.notify("workspace/didChangeConfiguration", {"settings": settings})
        await until(lambda: first.is_closed)
        await asyncio.sleep(0)
        assert running.server.session.config.engine.model == "other"


async def test_switching_off_lets_go_of_the_engine_and_says_so() -> None:
    backend = ScriptedBackend(("1",))
    async with in_process_server(backend) as running:
        await running.session.initialize(**WANTS_STATUS)
        await running.session.wait_for_notification("midline/status", state="ready")
        running.session.notify("workspace/didChangeConfiguration", {"settings": {"midline": {"enabled": False}}})
        told = await running.session.wait_for_notification("midline/status", state="stopped")
        assert told["message"] == "switched off in the settings"
        await until(lambda: backend.is_closed)
        running.session.open("x = ")
        num_told = count(running.session, "midline/status")
        await running.session.inline(0, 4)
        assert count(running.session, "midline/status") == num_told
        assert (backend.num_restarts, backend.requests) == (0, [])
