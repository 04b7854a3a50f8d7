"""``midline bench bulk`` as a user runs it: the real pipeline, engines and language server, and a tiny model."""

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

from tests.lsp_server.bench.test_bulk_workspace import PYTHON
from tests.support.tiny_checkpoints import TinyShape, write_tiny_gguf

_COMMAND = [sys.executable, "-m", "lsp_server", "bench", "bulk"]


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "shop" / "cart.py"
    path.parent.mkdir()
    path.write_text(PYTHON, encoding="utf-8")
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(num_layers=1), seed=2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--holes", "0"), "--holes is 0; it must be 1 to 100000"),
        (("--keys", "-1"), "--keys is -1; it must be 0 to 100000"),
        (("--caps", "1,x"), "--caps is '1,x'; it must be whole numbers"),
        (("--caps", "0"), "--caps is '0'; it must be different numbers from 1 on"),
        (("--caps", "4,4"), "--caps is '4,4'; it must be different numbers from 1 on"),
        (("--model", "nix"), "unknown model 'nix'"),
        (("--out", ""), "--out is empty"),
        (("nix.py",), "cannot read nix.py: No such file or directory"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = _run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"midline: {message}")


def test_files_without_code_are_told(model: str) -> None:
    done = _run("--model", model, os.devnull)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr.splitlines()[-1] == "midline: no body and no line in the files could be cut out; give other files"
    )


def test_all_runs_and_somebody_who_types(tmp_path: Path, code: str, model: str) -> None:
    out = tmp_path / "out"
    options = ("--model", model, "--holes", "2", "--caps", "2", "--keys", "4", "--out", str(out), "--json")
    done = _run(code, *options)
    assert done.returncode == 0, done.stderr
    (last,) = done.stdout.splitlines()
    report = json.loads(last)
    assert report["benchmark"] == "bulk" and report["conditions"]["files"] == ["cart.py"]
    assert report["machine"]["num_threads"] >= 1
    (result,) = report["results"]
    assert result["facts"]["num_parameters"] > 0 and result["facts"]["allowed_bytes"] > 0
    bulk, typing = result["rows"][:4], result["rows"][4:]
    assert [row["run"] for row in bulk] == ["one by one", "cap 2", "auto", "auto, unsorted"]
    for row in bulk:
        assert row["num_holes"] == 2 and row["holes_per_min"] > 0 and row["tokens_per_s"] > 0
        assert row["num_preemptions"] == 0 and row["peak_memory_bytes"] > 10**6
        # a prompt may go on with what another's answer began with
        assert row["num_computed_tokens"] >= row["num_distinct_tokens"] - 20 > 100
    assert [row["max_running"] for row in bulk] == [1, 2, 2, 2]
    assert bulk[0]["times_one_by_one"] == 1.0
    assert [row["typing"] for row in typing] == ["alone", "beside bulk"]
    assert all(row["num_keystrokes"] >= 4 for row in typing)
    assert "bulk_tokens_per_s" not in typing[0] and typing[1]["bulk_tokens_per_s"] > 0
    names = {bar["name"] for bar in result["bars"]}
    assert {"preemptions in all runs", "typing beside bulk, times the p95 of typing alone"} <= names
    written = {path.name for path in out.iterdir()}
    assert written - {"bulk.png"} == {"bulk.json", "bulk.csv"}
    with (out / "bulk.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == 6


def test_ended_early_it_leaves_nothing_running(code: str, model: str) -> None:
    process = subprocess.Popen(
        [*_COMMAND, code, "--model", model, "--holes", "2", "--caps", "2", "--keys", "4"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    with process:
        assert process.stderr is not None
        while b"typing, beside bulk" not in (line := process.stderr.readline()):
            assert line, "it ended by itself"
        deadline_s = time.monotonic() + 60
        while not any(map(_is_bulk_engine, processes := psutil.Process(process.pid).children(recursive=True))):
            assert time.monotonic() < deadline_s, "no bulk engine was started"
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    deadline_s = time.monotonic() + 60  # an engine that is loading looks up when it has loaded
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        assert time.monotonic() < deadline_s, "something still runs"
        time.sleep(0.02)


def _is_bulk_engine(process: psutil.Process) -> bool:
    try:
        return "engine.bulk" in process.cmdline()
    except psutil.Error:
        return False
