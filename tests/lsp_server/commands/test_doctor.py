"""`midline doctor`: all findings, and what is wrong among them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.config import EngineConfig
from engine.machine.record import machine_key, record_suggestion
from engine.paths import config_file, state_dir
from tests.support.machine import EXPERIMENTAL, FAST, LARGE, SLOW, SMALL, keep_machine, keep_model
from tests.support.services import find_registration
from tests.support.tiny_checkpoints import write_tiny_gguf


@pytest.fixture(autouse=True)
def _measured() -> None:
    """Measuring takes seconds and has its own tests."""
    keep_machine(FAST)


def _doctor(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lsp_server", "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=200,
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
    assert {"versions", "paths", "compute", "machine", "models"} < findings.keys()


def test_every_problem_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config_file().write_text("colour = 1\n")
    done = _doctor("--json", MIDLINE_STATE_DIR=str(tmp_path / "file"))
    assert done.returncode == 1
    problems = "\n".join(json.loads(done.stdout)["problems"])
    assert "unknown setting colour" in problems
    assert "set MIDLINE_STATE_DIR to another folder" in problems
    assert "no model is on this machine yet; run: midline models pull" in problems


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


def test_it_shows_threads_and_rates() -> None:
    keep_model(SMALL)
    shown = _doctor().stdout
    assert "threads            1 (OMP_NUM_THREADS)" in shown
    assert "memory reads       100.0 GB/s" in shown
    at_rows = "100.0 at 1 row, 100.0 at 4 rows, 100.0 at 128 rows = 25600 GOP/s"
    assert f"int8               10^9 weights/s: {at_rows}; 0.20 ms a layer besides" in shown
    assert "precision          auto is int8" in shown
    machine = json.loads(_doctor("--json").stdout)["machine"]
    assert machine["threads"] == {"num_threads": 1, "source": "OMP_NUM_THREADS"}
    assert machine["memory reads"] == 100e9
    assert machine["int8"] == {"weights_per_s": [100e9] * 3, "layer_s": 0.0002}


def test_each_model_has_its_prediction_beside_its_measurement() -> None:
    keep_machine(SLOW)
    keep_model(SMALL)
    record_suggestion(machine_key(EngineConfig()), SMALL, "int8", 287.4)
    done = _doctor()
    assert done.returncode == 0, done.stdout
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if "memory exact" in line or " auto " in line}
    assert "predicted 221 ms, measured 287 ms (int8); memory exact 2.0 GB, int8 1.9 GB, int4 1.4 GB" in lines[SMALL]
    assert lines[SMALL].endswith("; here; auto takes it")
    assert lines[LARGE].endswith("; not here; not for auto: slower than 500 ms")
    assert lines[EXPERIMENTAL].endswith("; not for auto: experimental")
    assert lines["auto"].endswith(SMALL)
    models = json.loads(_doctor("--json").stdout)["models"]
    small, large = models[SMALL], models[LARGE]
    assert (small["predicted_ms"], small["measured_ms"], small["precision"]) == (221.0, 287.4, "int8")
    assert (small["is_here"], small["is_auto"], small["reason"]) == (True, True, "")
    assert small["memory_bytes"].keys() == {"exact", "int8", "int4"}
    assert (large["is_here"], large["is_auto"], large["measured_ms"]) == (False, False, None)
    assert models["auto"] == {"here": SMALL, "best": SMALL}


def test_a_better_model_that_is_not_here_is_a_hint_and_no_problem() -> None:
    keep_model(SMALL)
    done = _doctor()
    assert done.returncode == 0
    assert f"{SMALL}; midline models pull {LARGE} would give better suggestions" in done.stdout


def test_without_any_model_it_says_which_one_fits() -> None:
    done = _doctor()
    assert done.returncode == 1
    assert f"no model is here yet; midline models pull {LARGE} would give suggestions" in done.stdout


def test_a_disturbed_measurement_is_told() -> None:
    keep_machine(FAST, num_busy_cores=1.4)
    assert (
        "0 min ago, while other programs used 1.4 cores: too slow; anew: midline doctor --measure" in _doctor().stdout
    )


@pytest.mark.timeout(300)
def test_it_measures_anew_when_asked() -> None:
    keep_model(SMALL)
    machine = json.loads(_doctor("--json", "--measure").stdout)["machine"]
    assert machine["memory reads"] not in (0, 100e9)
    assert json.loads(_doctor("--json").stdout)["machine"]["memory reads"] == machine["memory reads"]
