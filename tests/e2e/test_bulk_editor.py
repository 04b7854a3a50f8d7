"""Bulk completion through the real ``midline serve`` with the real bulk engine and a tiny model; and who ends when."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.support.bulk_editor import BulkEditor
from tests.support.lsp_session import ServerProcess, running_server, until
from tests.support.services import stop_service
from tests.support.tiny_checkpoints import write_tiny_gguf

_TEXT = "def area(r):\n    raise NotImplementedError\n\n\nname = <FILL>\n"
_SCRIPTED = ("-m", "tests.support.bulk_cli")


@contextlib.asynccontextmanager
async def _editor(folder: Path, *command: str) -> AsyncIterator[tuple[BulkEditor, ServerProcess]]:
    root = folder / "ws"
    root.mkdir()
    for number in range(3):
        (root / f"m{number}.py").write_text(f"# {number}\n{_TEXT}")
    model = write_tiny_gguf(folder / "tiny.gguf")
    async with running_server(folder, "--model", str(model), command=command or ("-m", "lsp_server")) as server:
        editor = BulkEditor(server.session, root)
        try:
            yield editor, server
        finally:
            await editor.aclose()
            await stop_service(folder)


def _engines(server: ServerProcess, module: str) -> list[psutil.Process]:
    """Processes that the server has started to compute in bulk."""
    found = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if module in child.cmdline():
                found.append(child)
    return found


async def test_a_run_with_the_engine_s_own_process(tmp_path: Path) -> None:
    async with _editor(tmp_path) as (editor, server):
        await editor.initialize()
        opened = editor.open(tmp_path / "ws" / "m0.py", f"# unsaved\n{_TEXT}")
        assert (await editor.command("start", max_tokens=8))["num_holes"] == 6
        waiting = editor.start_command("review")
        niceness = set[int]()
        while not waiting.done():
            for engine in _engines(server, "engine.bulk"):
                with contextlib.suppress(psutil.Error):
                    niceness.add(engine.nice())
            await asyncio.sleep(0.05)
        review = (await waiting)["result"]
        assert (review["state"], len(review["fills"])) == ("done", 6)
        assert review["num_filled"] + review["num_failed"] == 6
        assert all(
            bool(fill["text"]) == (fill["state"] == "filled") == (not fill["reason"]) for fill in review["fills"]
        )
        assert sys.platform == "win32" or 19 in niceness
        assert _engines(server, "engine.bulk") == []
        applied = await editor.command("apply")
        assert (applied["num_fills"], applied["conflicts"]) == (review["num_filled"], [])
        assert editor.texts[opened][0].startswith("# unsaved\n")
        await server.session.shut_down()
        assert await server.wait() == 0
        assert await server.stderr() == ""


@pytest.mark.parametrize("ending", ["shutdown", "exit", "kill"])
async def test_no_engine_is_left_behind(tmp_path: Path, ending: str) -> None:
    async with _editor(tmp_path, *_SCRIPTED, "slow:200") as (editor, server):
        await editor.initialize()
        await editor.command("start")
        await until(lambda: _engines(server, "tests.support.bulk_script"))
        (engine,) = _engines(server, "tests.support.bulk_script")
        if ending == "kill":
            server.process.kill()
        elif ending == "exit":
            server.session.notify("exit")
        else:
            await server.session.shut_down()
        assert await server.wait() == {"shutdown": 0, "exit": 1, "kill": -9}[ending]
        await until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)
