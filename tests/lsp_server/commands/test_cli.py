"""The command line as a user provokes it: one clear line, the right exit code, never a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.paths import config_file, state_dir

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


def test_a_console_that_knows_few_characters() -> None:
    done = _run("models", "list", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "qwen2.5-coder-0.5b" in done.stdout


def test_interrupt_is_one_line_and_exit_code_130() -> None:
    command = [*_MIDLINE, "serve", "--tcp", "0", "--log-level", "info"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline()  # it listens
        process.send_signal(signal.SIGINT)
        lines = process.stderr.read().splitlines()
    assert process.returncode == 130
    assert lines == ["midline: interrupted"]


def test_relative_folders_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIDLINE_STATE_DIR", "state")
    monkeypatch.setenv("MIDLINE_CONFIG", "~/midline.toml")
    assert state_dir() == tmp_path / "state"
    assert config_file() == Path.home() / "midline.toml"
