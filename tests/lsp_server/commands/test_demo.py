"""`midline demo` with a tiny random model: the real server and engine, whatever the model suggests."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from engine.paths import config_file, state_dir
from lsp_server.demo.script import load_script
from tests.support.services import stop_service
from tests.support.tiny_checkpoints import write_tiny_gguf


@pytest.fixture
async def command(tmp_path: Path) -> AsyncIterator[list[str]]:
    yield [sys.executable, "-m", "lsp_server", "demo", "--model", str(write_tiny_gguf(tmp_path / "tiny.gguf"))]
    await stop_service(state_dir().parent)


def _wait_for_server(demo: subprocess.Popen[bytes]) -> psutil.Process:
    """The language server that the demo has started."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in psutil.Process(demo.pid).children():
            if "serve" in child.cmdline():
                return child
        time.sleep(0.02)
    raise AssertionError("no language server was started")


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
    assert re.search(r"is ready\s+after", done.stdout)
    assert done.stdout.count(" ms") + done.stdout.count("no suggestion") >= len(load_script()[1])
    if done.returncode:  # a random model may have nothing to say
        assert done.stderr == "midline: the model suggested nothing in the whole example; run: midline doctor\n"


def test_on_a_terminal_it_types_in_colour(command: list[str]) -> None:
    main, other = pty.openpty()
    process = subprocess.Popen([*command, "--fast"], stdin=other, stdout=other, stderr=other)
    os.close(other)
    shown = b""
    try:
        while chunk := os.read(main, 65536):
            shown += chunk
    except OSError:  # the other side is closed
        pass
    process.wait(60)
    assert b"\x1b[" in shown
    assert re.search(rb"places got a suggestion|suggested nothing", shown)


def test_switched_off_is_said_at_once(command: list[str]) -> None:
    config_file().write_text("enabled = false\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"midline: completions are switched off by 'enabled = false' in .*\n", done.stderr)


def test_interrupt_is_one_line_and_leaves_no_server(command: list[str]) -> None:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    server = _wait_for_server(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.decode().splitlines()[-1:] == ["midline: interrupted"]
    assert b"Traceback" not in errors
    server.wait(10)


def test_a_server_that_dies_is_one_line(command: list[str]) -> None:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _wait_for_server(process).kill()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    (line,) = errors.decode().splitlines()
    assert line.startswith("midline: the language server has ended")
