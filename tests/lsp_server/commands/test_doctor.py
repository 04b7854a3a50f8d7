"""`midline doctor`: all findings, and what is wrong among them."""

import json
import os
import subprocess
import sys
from pathlib import Path

from engine.paths import config_file
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


def test_a_missing_torch_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    done = _doctor(PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert done.returncode == 1
    assert "no torch here; in Midline's folder run: pip install '.[local]'" in done.stdout
    assert "Traceback" not in done.stderr
