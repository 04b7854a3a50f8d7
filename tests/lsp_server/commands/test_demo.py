"""`midline demo` with a tiny random model: the real server and engine, whatever the model suggests."""

import asyncio
import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.paths import config_file, state_dir
from lsp_server.demo.editor import DemoEditor
from lsp_server.demo.script import load_script
from tests.support.services import stop_service
from tests.support.tiny_checkpoints import write_tiny_gguf

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
async def command(tmp_path: Path) -> AsyncIterator[list[str]]:
    yield [sys.executable, "-m", "lsp_server", "demo", "--model", str(write_tiny_gguf(tmp_path / "tiny.gguf"))]
    await stop_service(state_dir().parent)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that does not outlive the test."""
    with contextlib.ExitStack() as processes:

        def start_process(command: list[str], **streams: int) -> "subprocess.Popen[bytes]":
            streams = streams or {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = processes.enter_context(subprocess.Popen(command, **streams))
            processes.callback(process.kill)
            return process

        yield start_process


def _wait_for_server(demo: "subprocess.Popen[bytes]") -> psutil.Process:
    """The language server that the demo has started."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in psutil.Process(demo.pid).children():
            with contextlib.suppress(psutil.Error):
                if "serve" in child.cmdline():
                    return child
        time.sleep(0.02)
    raise AssertionError("no language server was started")


def _wait_for_end(process: psutil.Process) -> None:
    """Until it has ended, whether or not somebody has fetched its exit code: its parent may be dead."""
    deadline = time.monotonic() + 15
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"the language server {process.pid} does not end"
        time.sleep(0.02)


def test_the_script_is_a_file_with_places_to_type_at() -> None:
    lines, scenes = load_script()
    compile("\n".join(lines), "cart.py", "exec")
    assert len(scenes) >= 4
    for scene in scenes:
        assert lines[scene.line].startswith(scene.indentation + scene.typed)
        assert scene.typed


def test_it_plays_to_the_end_without_a_terminal(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    assert f"{command[-1]} is ready after" in done.stdout  # whole, however long the path is
    assert done.stdout.count(" ms") + done.stdout.count("no suggestion") >= len(load_script()[1])
    if done.returncode:  # a random model may have nothing to say
        assert done.stderr == "midline: the model suggested nothing in the whole example; run: midline doctor\n"


def test_on_a_terminal_it_types_in_colour(command: list[str], start: Start) -> None:
    main, other = pty.openpty()
    process = start([*command, "--fast"], stdin=other, stdout=other, stderr=other)
    os.close(other)
    shown, deadline = b"", time.monotonic() + 120
    with contextlib.suppress(OSError), open(main, "rb", buffering=0) as terminal:  # OSError: the other side is closed
        while select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
            shown += terminal.read(65536)
    process.wait(20)
    assert b"\x1b[" in shown
    assert re.search(rb"places got a suggestion|suggested nothing", shown)


def test_switched_off_is_said_at_once(command: list[str]) -> None:
    config_file().write_text("enabled = false\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"midline: completions are switched off by 'enabled = false' in .*\n", done.stderr)


def test_interrupt_is_one_line_and_leaves_no_server(command: list[str], start: Start) -> None:
    process = start(command)
    server = _wait_for_server(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.decode().splitlines()[-1:] == ["midline: interrupted"]
    assert b"Traceback" not in errors
    _wait_for_end(server)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_demo_leaves_no_server(command: list[str], start: Start, end: signal.Signals) -> None:
    process = start(command)
    server = _wait_for_server(process)
    process.send_signal(end)
    process.communicate(timeout=30)
    _wait_for_end(server)


def test_a_server_that_dies_is_one_line(command: list[str], start: Start) -> None:
    process = start(command)
    _wait_for_server(process).kill()
    _assert_says_that_the_server_ended(process)


def test_a_server_that_dies_while_keys_are_typed_is_one_line(command: list[str], start: Start) -> None:
    process = start(command)
    server = _wait_for_server(process)
    assert process.stdout is not None
    while b"Typing into" not in (line := process.stdout.readline()):
        assert line
    server.kill()
    _assert_says_that_the_server_ended(process)


def test_a_reader_that_goes_away_ends_it(command: list[str], start: Start) -> None:
    process = start(command)
    server = _wait_for_server(process)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr is not None
    assert process.stderr.read() == b""
    _wait_for_end(server)


async def test_closing_takes_no_time_when_an_interrupt_has_cancelled_everything() -> None:
    editor = DemoEditor("a.py", [""])
    await editor.start(None)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()  # as asyncio.run does it, pygls's own among them
    await asyncio.gather(*tasks, return_exceptions=True)
    started = time.monotonic()
    with contextlib.suppress(asyncio.CancelledError):
        await editor.close()
    assert time.monotonic() - started < 4  # without the answer to its request it would wait for five


def _assert_says_that_the_server_ended(process: "subprocess.Popen[bytes]") -> None:
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    line, *more = errors.decode().splitlines()
    assert line.startswith("midline: the language server has ended") and not more, errors.decode()
