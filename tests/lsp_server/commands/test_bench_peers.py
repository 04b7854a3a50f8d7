"""``midline bench peers`` as a user runs it, with a stand-in for the peer: wrong use, failures, interrupts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.llama_stand_in import pid_of, write_stand_in
from tests.support.tiny_checkpoints import write_tiny_folder, write_tiny_gguf

_COMMAND = [sys.executable, "-m", "lsp_server", "bench", "peers", "--quick"]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return write_stand_in(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_tiny_gguf(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repetitions", "2"), "--repetitions is 2; it must be 3 to 1000"),
        (("--precision", "int2"), "--precision is 'int2'"),
        (("--model", "published"), "--model is published"),
        (("--model", "nix"), "unknown model 'nix'"),
        (("--peer-spec", "'"), '--peer-spec is "\'"'),
        (("--out", ""), "--out is empty"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = _run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"midline: {message}")


def test_a_wrong_server_and_a_model_that_the_peer_cannot_read_are_told_before_anything_is_loaded(
    tmp_path: Path, program: Path, model: str
) -> None:
    done = _run("--model", model, "--server", str(tmp_path / "nix"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"midline: --server is '{tmp_path / 'nix'}': no such program; give the path of llama-server\n"
    folder = write_tiny_folder(tmp_path / "folder")
    done = _run("--model", str(folder), "--server", str(program))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"midline: --model is {folder}: llama.cpp reads .gguf files only; give one\n"


def test_too_little_code_is_told(program: Path, model: str, tmp_path: Path) -> None:
    done = _run("--model", model, "--server", str(program), "--data", str(tmp_path / "*.rs"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith(f"midline: --data is '{tmp_path / '*.rs'}': 0 files with 0 places")


def test_a_peer_that_cannot_load_the_model_is_quoted(
    program: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "dies")
    done = _run("--model", model, "--server", str(program))
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("midline: llama-server ended with code 1 instead of starting: ")
    assert last.endswith("| loading | error: no such model")


@pytest.mark.parametrize(
    ("number", "code", "message"), [(signal.SIGINT, 130, ["midline: interrupted"]), (signal.SIGTERM, 143, [])]
)
def test_a_signal_ends_the_peer_too(
    program: Path, model: str, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int, message: list[str]
) -> None:
    monkeypatch.setenv("STAND_IN", "sleeps")
    command = [*_COMMAND, "--model", model, "--server", str(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            _wait_for(program.with_suffix(".log"), process)  # it has been asked
            process.send_signal(number)
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, output) == (code, "")
    assert [line for line in errors.splitlines() if line.startswith("midline: ")] == message
    assert not psutil.pid_exists(pid_of(program))


def _wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    deadline_s = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.02)
