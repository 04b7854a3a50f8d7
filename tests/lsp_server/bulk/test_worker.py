"""The client of the engine's process: order, back pressure, and every way in which the process can end."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from engine.bulk.wire import Item, Progress, Ready, Result, Start, Summary
from engine.config import EngineConfig
from engine.errors import ServiceError
from engine.request import CompletionRequest
from lsp_server.bulk.worker import Worker, worker
from tests.support.bulk_script import answer
from tests.support.lsp_session import until

_START = Start(EngineConfig(model="tiny"))


def _command(mode: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.support.bulk_script", mode)


def _item(number: int, num_chars: int = 10) -> Item:
    return Item(number, CompletionRequest(f"x{number} = ".ljust(num_chars), ""))


async def _results(engine: Worker, num_items: int, num_chars: int = 10) -> dict[int, str]:
    async def feed() -> None:
        for number in range(num_items):
            await engine.tell(_item(number, num_chars))
        engine.finish()

    feeding = asyncio.create_task(feed())
    messages = [message async for message in engine.said()]
    await feeding
    assert isinstance(messages[0], Ready)
    assert isinstance(messages[-1], Summary)
    assert any(isinstance(message, Progress) for message in messages)
    return {message.id: message.text for message in messages if isinstance(message, Result)}


async def test_every_item_gets_its_answer() -> None:
    async with worker(_START, _command("plain")) as engine:
        results = await _results(engine, 20)
    assert results == {number: answer(_item(number).request) for number in range(20)}


async def test_more_than_the_pipes_hold_goes_both_ways() -> None:
    async with worker(_START, _command("plain")) as engine:
        results = await _results(engine, 300, num_chars=20_000)
    assert len(results) == 300


async def test_what_cannot_be_computed_is_told_in_its_own_words() -> None:
    with pytest.raises(ServiceError) as caught:
        async with worker(_START, _command("cannot")) as engine:
            await _results(engine, 3)
    assert str(caught.value) == "model tiny is damaged; run: midline models pull tiny"


@pytest.mark.skipif(os.name == "nt", reason="has no signals")
async def test_a_killed_process_is_one_line_with_the_remedy() -> None:
    with pytest.raises(ServiceError) as caught:
        async with worker(_START, _command("die:3")) as engine:
            await _results(engine, 200, num_chars=20_000)
    assert str(caught.value) == (
        "the bulk engine was killed by signal 9, as when memory runs out;"
        " a smaller max_batch or engine.max_memory_mb needs less; run the same command again to go on"
    )


async def test_a_crash_names_the_last_line_of_its_log() -> None:
    with pytest.raises(ServiceError) as caught:
        async with worker(_START, _command("exit:0")) as engine:
            await _results(engine, 1)
    assert str(caught.value) == (
        "the bulk engine ended with code 3 (MemoryError: no room for 8 tensors); run the same command again to go on"
    )


async def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="cannot start the bulk engine: No such file or directory"):
        async with worker(_START, (str(tmp_path / "none"),)):
            pass


@pytest.mark.skipif(os.name == "nt", reason="has no signals")
@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_leaving_early_ends_the_process(tmp_path: Path, is_stubborn: bool) -> None:
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" if is_stubborn else ""
    code = f"import os, time; {ignoring} open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    async with worker(_START, (sys.executable, "-c", code)):
        await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        left_s = time.monotonic()
    assert time.monotonic() - left_s < 2.0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.skipif(os.name == "nt", reason="has no signals")
async def test_the_process_ends_when_its_client_is_killed(tmp_path: Path) -> None:
    client = (
        "import asyncio, sys\n"
        "from lsp_server.bulk.worker import worker\n"
        "from engine.bulk.wire import Ready, Start\n"
        "from engine.config import EngineConfig\n"
        "async def main():\n"
        f"    async with worker(Start(EngineConfig('tiny')), {_command('plain')!r}) as engine:\n"
        "        async for message in engine.said():\n"
        "            print(engine._process.pid, flush=True)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", client, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    os.kill(pid, 0)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await until(lambda: not _is_running(pid))


def _is_running(pid: int) -> bool:
    """Whether a process computes: an ended one may wait for its new parent to take note."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
