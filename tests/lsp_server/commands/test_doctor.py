"""`midline doctor`: all findings, and what is wrong among them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.paths import config_file, state_dir
from tests.support.services import find_registration
from tests.support.tiny_checkpoints import write_tiny_gguf


def _doctor(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lsp_server", "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_nothing_is_wrong(tmp_path: Path) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    done = _doctor("--model", model)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing is wrong." in done.stdout
    findings = json.loads(_doctor("--json", "--model", model).stdout)
    assert findings["problems"] == []
    assert findings["model"] == {model: model}
    assert findings["service"]["state"] == "stopped"
    assert {"versions", "paths", "compute"} < findings.keys()


def test_every_problem_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config_file().write_text("colour = 1\n")
    done = _doctor("--json", MIDLINE_STATE_DIR=str(tmp_path / "file"))
    assert done.returncode == 1
    problems = "\n".join(json.loads(done.stdout)["problems"])
    assert "unknown setting colour" in problems
    assert "set MIDLINE_STATE_DIR to another folder" in problems
    assert "midline models pull qwen2.5-coder-0.5b" in problems


@pytest.mark.parametrize("variable", ["MIDLINE_STATE_DIR", "MIDLINE_CACHE_DIR"])
@pytest.mark.parametrize("folder", [os.devnull, __file__, "/proc/midline"])
def test_a_folder_that_cannot_be_used_is_a_finding(variable: str, folder: str) -> None:
    done = _doctor("--json", **{variable: folder})
    assert done.returncode == 1
    (problem,) = [text for text in json.loads(done.stdout)["problems"] if "cannot be used" in text]
    assert problem.startswith(folder)
    assert problem.endswith(f"set {variable} to another folder")
    assert done.stderr == ""


@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_a_missing_or_broken_torch_is_a_finding(tmp_path: Path, error: str) -> None:
    (tmp_path / "torch.py").write_text(f"raise {error}('no torch here')\n")
    done = _doctor(PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == 1
    assert "no torch here; in Midline's folder run: pip install '.[local]'" in done.stdout
    assert "Traceback" not in done.stderr


def test_an_engine_that_was_killed_is_a_finding(tmp_path: Path) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    (tmp_path / "a.py").write_text("x = ")
    complete = ["complete", f"{tmp_path / 'a.py'}:1:5", "--model", model]
    subprocess.run([sys.executable, "-m", "lsp_server", *complete], capture_output=True, timeout=60, check=True)
    registration = find_registration(state_dir().parent)
    assert registration is not None
    engine = psutil.Process(registration.pid)
    engine.send_signal(signal.SIGKILL)
    psutil.wait_procs([engine], timeout=10)
    findings = json.loads(_doctor("--json", "--model", model).stdout)
    assert findings["service"]["state"] == "stopped"
    (problem,) = findings["problems"]
    assert problem.startswith("last attempt: the engine ended unexpectedly")
