"""The command line as a user provokes it: one clear line, the right exit code, never a traceback."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.paths import cache_dir, config_file, state_dir

_MIDLINE = [sys.executable, "-m", "lsp_server"]


def _run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*_MIDLINE, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("complete", "no-such-file.py:1:1"), "no such file: no-such-file.py"),
        (("complete", "x.py:1:" + "9" * 5000), "is not FILE:LINE:COL"),
        (("complete", __file__ + ":1:1", "--model", ""), "the model's name is empty"),
        (("models", "pull", ""), "the model's name is empty"),
        (("models", "pull", "qwen"), "known"),
        (("serve", "--tcp", "9" * 5000), "is not [HOST:]PORT"),
        (("serve", "--stdio", "--tcp", "1"), "exclude each other"),
        (("demo", "--model", "nothing.gguf"), "nothing.gguf"),
        (("models", "path", "~no-such-user/x.gguf"), "no such model file: ~no-such-user/x.gguf"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = _run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("midline: ")
    assert message in line


def test_bad_options_are_explained_by_the_usage_line() -> None:
    done = _run("complete", "--no-such-option")
    assert done.returncode == 2
    assert "Usage:" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*_MIDLINE, "models", "list"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "midline: cannot write the output: No space left on device\n"


def test_a_reader_that_goes_away_is_silent() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*_MIDLINE, "models", "list"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("arguments", "code"), [("--version", 0), ("models list", 0), ("doctor", 1), ("complete no-such-file.py:1:1", 2)]
)
def test_closed_streams_change_nothing_else(arguments: str, code: int) -> None:
    for closed, silent in ((">&-", True), ("2>&-", False), (">&- 2>&-", True)):
        command = ["sh", "-c", f'"$@" {closed}', "sh", *_MIDLINE, *arguments.split()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        if silent:
            assert done.stdout == ""


def test_a_folder_that_cannot_be_used_is_not_called_the_output() -> None:
    done = _run("models", "remove", "smollm2-135m", MIDLINE_CACHE_DIR=__file__)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"midline: cannot use {__file__}/models")


def test_a_console_that_knows_few_characters() -> None:
    done = _run("doctor", PYTHONIOENCODING="cp1252")  # it marks its lines with ✓ and ✗
    assert "Traceback" not in done.stderr
    assert "? midline" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_interrupt_of_serve_is_one_line() -> None:
    command = [*_MIDLINE, "serve", "--tcp", "0", "--log-level", "info"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline()  # it listens
        assert _interrupt(process) == (130, ["midline: interrupted"])


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_interrupt_of_complete_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.py")
    command = [*_MIDLINE, "complete", f"{tmp_path / 'a.py'}:1:1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        writer = None
        while writer is None and process.poll() is None:
            with contextlib.suppress(OSError):  # until the command reads it
                writer = os.open(tmp_path / "a.py", os.O_WRONLY | os.O_NONBLOCK)
        assert _interrupt(process) == (130, ["midline: interrupted"])
        assert writer is not None
        os.close(writer)


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_interrupt_of_doctor_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import sys, time\nsys.stderr.write('here\\n')\ntime.sleep(60)\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [*_MIDLINE, "doctor", "--json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "here\n"
        assert _interrupt(process) == (130, ["midline: interrupted"])


def _interrupt(process: "subprocess.Popen[str]") -> tuple[int, list[str]]:
    """Its exit code and what it still writes to stderr. Kills it if it does not end.

    Python sees a signal that comes just before a blocking read only after that read, so it may take a second one.
    """
    try:
        for _ in range(10):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _, errors = process.communicate(timeout=2)
                return process.returncode, errors.splitlines()
        raise AssertionError("it does not end")
    finally:
        process.kill()


def test_relative_folders_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIDLINE_STATE_DIR", "state")
    monkeypatch.setenv("MIDLINE_CACHE_DIR", "cache")
    monkeypatch.setenv("MIDLINE_CONFIG", "~/midline.toml")
    assert state_dir() == tmp_path / "state"
    assert cache_dir() == tmp_path / "cache"
    assert config_file() == Path.home() / "midline.toml"
    monkeypatch.setenv("MIDLINE_CONFIG", "~no-such-user/midline.toml")
    assert config_file() == tmp_path / "~no-such-user" / "midline.toml"
