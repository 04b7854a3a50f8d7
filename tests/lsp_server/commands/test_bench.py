"""``midline bench`` as a user runs it: real processes, the model of the published shape, few requests."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_MIDLINE = [sys.executable, "-m", "lsp_server", "bench"]


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*_MIDLINE, *arguments], capture_output=True, text=True, timeout=120, check=False)


def _measured(*arguments: str) -> tuple[dict[str, Any], str]:
    done = _run(*arguments)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    report: dict[str, Any] = json.loads(last)
    return report, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serving", "--caps", "0"), "--caps is 0"),
        (("serving", "--caps", "4,4"), "--caps is 4,4"),
        (("offline", "--caps", "1,,4"), "--caps is '1,,4'"),
        (("offline", "--caps", "9" * 5000), "--caps is "),
        (("offline", "--order", "random"), "--order is 'random'; it must be one of submitted, sorted, both"),
        (("offline", "--requests", "0"), "--requests is 0"),
        (("offline", "--seed", "-1"), "--seed is -1"),
        (("serving", "--rate", "nan"), "--rate is nan"),
        (("serving", "--typed", "0"), "--typed is 0"),
        (("serving", "--model", "nix"), "unknown model 'nix'"),
        (("offline", "--model", "nix.gguf"), "no such model file: nix.gguf"),
        (("step", "--rows", "0"), "--rows is 0"),
        (("step", "--rows", "1,x"), "--rows is '1,x'; it must be whole numbers from 1 to 1024"),
        (("step", "--rows", "8,8"), "--rows is 8,8"),
        (("step", "--context", "-1"), "--context is -1"),
        (("step", "--rounds", "0"), "--rounds is 0"),
        (("step", "--precision", "int3"), "--precision is 'int3'; it must be one of auto, exact"),
        (("step", "--model", "nix"), "unknown model 'nix'"),
        (("serving", "--out", ""), "--out is empty"),
        (("serving", "--out", __file__), f"--out is {__file__}: cannot write there"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = _run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"midline: {message}")


def test_a_model_that_is_not_here_is_told_before_anything_is_measured() -> None:
    done = _run("offline")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "midline models pull qwen2.5-coder-0.5b" in line


def test_serving(tmp_path: Path) -> None:
    report, errors = _measured("serving", "--quick", "--out", str(tmp_path / "new" / "folder"))
    assert report["benchmark"] == "serving" and report["machine"]["num_threads"] == 1
    assert report["conditions"]["num_requests"] == 6 and report["conditions"]["seed"] == 0
    (result,) = report["results"]
    assert result["model"] == "published" and result["facts"]["num_parameters"] == 5_838_080
    assert [row["cap"] for row in result["rows"]] == [1, 4]
    for row in result["rows"]:
        assert row["num_completed"] == 6 and row["num_superseded"] == 0
        assert 0.0 < row["ttft_p50_ms"] <= row["ttft_p95_ms"]
        assert row["itl_p95_ms"] > 0.0 and row["output_tokens_per_s"] > 0.0
        assert 0.0 < row["cached_share"] < 1.0  # buffers grow, and what stood there is not computed again
    written = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert written - {"serving.png"} == {"serving.json", "serving.csv"}
    assert ("serving.png" in written) != ("pip install '.[bench]'" in errors)


def test_serving_with_supersede_loses_no_request() -> None:
    report, _ = _measured("serving", "--quick", "--supersede", "--caps", "1", "--rate", "1000")
    (row,) = report["results"][0]["rows"]
    assert row["num_superseded"] > 0
    assert row["num_completed"] + row["num_superseded"] == 6


def test_offline() -> None:
    report, _ = _measured("offline", "--quick")
    (result,) = report["results"]
    assert [(row["cap"], row["order"]) for row in result["rows"]] == [
        *((1, "submitted"), (1, "sorted")),
        *((4, "submitted"), (4, "sorted")),
    ]
    for row in result["rows"]:
        assert row["wall_s"] > 0.0 and row["output_tokens_per_s"] > 0.0
        assert (row["recomputed_tokens"], row["cached_tokens"]) == (0, 0)
        assert 0.0 < row["padding_share"] < 1.0
        assert row["ceiling_s"] is None
    alone, together = (result["rows"][i]["kv_peak_share"] for i in (0, 2))
    assert 0.0 < alone < together < 1.0


def test_step(tmp_path: Path) -> None:
    report, errors = _measured("step", "--quick", "--out", str(tmp_path))
    assert report["benchmark"] == "step"
    assert report["conditions"] == {"precision": "auto", "num_cached_tokens": 32, "rows": [1, 8, 16], "num_rounds": 2}
    (result,) = report["results"]
    assert (result["model"], result["facts"]["dtype"]) == ("published", "float32")
    assert [row["num_rows"] for row in result["rows"]] == [1, 8, 16]
    for row in result["rows"]:
        assert 0.0 < row["least_ms"] <= row["median_ms"]
        assert row["read_bytes"] > 4 * (result["facts"]["num_parameters"] - 100_000)  # all but embedding and norms
        assert sum(value for name, value in row.items() if name.endswith("_share") and "read" not in name) == (
            pytest.approx(1.0)
        )
    assert result["roofline"]["read_gb_per_s"] <= result["roofline"]["best_read_gb_per_s"]
    ratio = result["bars"][-1]
    assert ratio["value"] == pytest.approx(result["rows"][1]["median_ms"] / result["rows"][0]["median_ms"])
    assert ratio["is_met"] == (ratio["value"] <= ratio["limit"] == 1.25)
    written = {path.name for path in tmp_path.iterdir()}
    assert written - {"step.png"} == {"step.json", "step.csv"}
    assert ("step.png" in written) != ("pip install '.[bench]'" in errors)


def test_a_precision_that_cannot_be_had_is_one_line() -> None:
    done = _run("step", "--quick", "--precision", "int8")  # that model is measured in float32
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("midline: engine.precision is 'int8'")


@pytest.mark.skipif(os.name == "nt", reason="sends signals")
@pytest.mark.parametrize(
    ("number", "code", "message"), [(signal.SIGINT, 130, ["midline: interrupted"]), (signal.SIGTERM, 143, [])]
)
def test_a_signal_ends_the_measuring_too(number: signal.Signals, code: int, message: list[str]) -> None:
    command = [*_MIDLINE, "offline", "--model", "published", "--requests", "10000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while "cap 1" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(number)
            # the pipes close only when the measuring process has ended as well
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, output, errors.splitlines()) == (code, "", message)
