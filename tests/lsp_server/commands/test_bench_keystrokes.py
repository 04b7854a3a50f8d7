"""``midline bench keystrokes`` as a user runs it: the real language server, service and engine, and a tiny model."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.paths import config_file
from lsp_server.commands.bench_keystrokes import bundled_files, parse_ablations
from lsp_server.completion import ablation
from tests.support.tiny_checkpoints import write_tiny_gguf

_COMMAND = [sys.executable, "-m", "lsp_server", "bench", "keystrokes"]
CODE = "first = 1\nsecond = first + 2\nthird = second + 3\nprint(first, third)\n"


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "add.py"
    path.write_text(CODE, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sessions", "0"), "--sessions is 0; it must be 1 to 1000"),
        (("--keys", "0"), "--keys is 0; it must be 1 to "),
        (("--seed", "-1"), "--seed is -1; it must be 0 to "),
        (("--ablate", "cash"), "--ablate is 'cash'; it must be some of cache, anchor, heal, typethrough, spec, cancel"),
        (("--ablate", "cache,,spec"), "--ablate is ''; it must be some of "),
        (("--model", "nix"), "unknown model 'nix'"),
        (("--out", ""), "--out is empty"),
        (("--out", __file__), f"--out is {__file__}: cannot write there"),
        (("nix.py",), "cannot read nix.py: No such file or directory"),
        ((sys.executable,), f"{sys.executable} is no UTF-8 text; give source files"),
        ((os.devnull,), f"{os.devnull}: no line of code in there; give other files"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = _run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"midline: {message}")


def test_a_model_that_is_not_here_is_told_before_anything_is_started() -> None:
    done = _run("--model", "qwen2.5-coder-0.5b")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "midline models pull qwen2.5-coder-0.5b" in line


def test_switched_off_is_said_at_once() -> None:
    config_file().write_text("enabled = false\n")
    done = _run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("midline: completions are switched off by 'enabled = false' in ")


def test_names_of_what_is_switched_off() -> None:
    assert parse_ablations(None) == []
    assert parse_ablations("spec, cache,spec") == ["spec", "cache"]


def test_ablations_are_read_from_the_environment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ablation._switched_off.cache_clear()
    monkeypatch.setenv(ablation.VARIABLE, "spec, cache")
    assert [name for name in ablation.ABLATIONS if ablation.is_off(name)] == ["cache", "spec"]
    monkeypatch.setenv(ablation.VARIABLE, "")
    assert ablation.is_off("spec")
    with pytest.raises(KeyError):
        ablation.is_off("cash")
    ablation._switched_off.cache_clear()


def test_the_bundled_files_are_code_of_ours() -> None:
    files = {file.name: file for file in bundled_files()}
    assert len(files) > 50 and {"engine/loop.py", "lsp_server/session.py"} <= files.keys()
    assert {file.language_id for file in files.values()} == {"python"}


def test_a_run_and_one_with_something_switched_off(tmp_path: Path, code: str) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf", seed=2))
    out = tmp_path / "out"
    options = ("--sessions", "1", "--keys", "5", "--ablate", "typethrough", "--out", str(out))
    done = _run(code, "--model", model, *options, "--json")
    assert done.returncode == 0, done.stderr
    (last,) = done.stdout.splitlines()
    report = json.loads(last)
    assert report["benchmark"] == "keystrokes" and report["conditions"]["files"] == [code]
    (result,) = report["results"]
    assert result["facts"]["num_parameters"] > 0 and result["bars"] == []
    full, session, without = result["rows"]
    assert (full["run"], session["session"], without["run"]) == ("full", "1 add.py", "typethrough off")
    for row in (full, without):
        assert row["num_keystrokes"] >= 5 and row["num_failed"] == 0
        assert row["latency_p50_ms"] > 0 and 0 < row["in_time_share"] <= 1
        assert row["mean_prompt_tokens"] > 5 and row["num_rows"] > row["num_wasted_rows"] >= 0
    assert without["typed_share"] == 0.0
    assert not any("do not match" in remark for remark in result["remarks"])
    written = {path.name for path in out.iterdir()}
    assert written - {"keystrokes.png"} == {"keystrokes.json", "keystrokes.csv"}
    with (out / "keystrokes.csv").open(encoding="utf-8", newline="") as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["full", "full", "typethrough off"]
    assert json.loads((out / "keystrokes.json").read_text(encoding="utf-8")) == report


@pytest.mark.parametrize(("end", "code_at_end"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ended_early_it_leaves_nothing_running(
    tmp_path: Path, code: str, end: signal.Signals, code_at_end: int
) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf", seed=2))
    process = subprocess.Popen([*_COMMAND, code, "--model", model], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with process:
        assert process.stderr is not None
        while b"session 1 of" not in (line := process.stderr.readline()):
            assert line, "it ended by itself"
        processes = [p for p in psutil.process_iter() if _mentions(p, model) and p.pid != process.pid]
        assert len(processes) == 2  # the language server and the engine
        process.send_signal(end)
        assert process.wait(30) == code_at_end
    deadline_s = time.monotonic() + 20
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        assert time.monotonic() < deadline_s, "something still runs"
        time.sleep(0.02)


def _mentions(process: psutil.Process, text: str) -> bool:
    try:
        return any(text in word for word in process.cmdline())
    except psutil.Error:
        return False
