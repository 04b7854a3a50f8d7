"""``midline bulk`` as a process with the real engine and the default model, on a small workspace in three languages."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import DEFAULT_MODEL
from engine.paths import models_dir
from tests.real_model.conftest import require

pytestmark = pytest.mark.real_model

_FILES = {
    "shop/item.py": '''class Item:
    """Something with a price."""

    def __init__(self, name: str, price: float):
        self.name = name
        self.price = price
''',
    "shop/cart.py": '''from shop.item import Item


class Cart:
    """Items that somebody wants to buy."""

    def __init__(self):
        self.items: list[Item] = []

    def add(self, item: Item) -> None:
        """Put an item into the cart."""
        raise NotImplementedError

    def total(self) -> float:
        """Sum of the prices of all items."""
        return <FILL>

    def is_empty(self) -> bool:
        """Whether there is no item in the cart."""
        raise NotImplementedError
''',
    "web/clamp.js": """// The nearest number between low and high.
function clamp(x, low, high) {
  throw new Error("not implemented");
}

module.exports = { clamp };
""",
    "max.go": """package numbers

// Max returns the larger of two numbers.
func Max(a, b int) int {
\tpanic("TODO")
}
""",
}
_NUM_HOLES = 5


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    require(DEFAULT_MODEL)
    for name, text in _FILES.items():
        path = tmp_path / "ws" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "ws"


def _start(workspace: Path, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "lsp_server", "bulk", "--model", DEFAULT_MODEL, "--progress", "json", *arguments],
        cwd=workspace,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(workspace: Path, *arguments: str, **variables: str) -> tuple[int, str, list[dict[str, object]]]:
    """Exit code, result and events."""
    with _start(workspace, *arguments, **variables) as process:
        out, err = process.communicate(timeout=240)
    assert "Traceback" not in err, err
    events = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert events, err
    assert events[-1]["event"] == "done", err.splitlines()[-1]
    return process.returncode, out, events


def test_a_workspace_is_filled_sensibly_and_a_killed_run_ends_the_same(workspace: Path, tmp_path: Path) -> None:
    journals = [("--journal", str(tmp_path / name)) for name in ("whole", "killed")]
    code, whole, events = _run(workspace, "--format", "jsonl", *journals[0])
    rows = {(row["file"], row["name"]): row for row in map(json.loads, whole.splitlines())}
    assert len(rows) == _NUM_HOLES
    assert code == (0 if all(row["state"] == "filled" for row in rows.values()) else 1)
    assert sum(row["state"] == "filled" for row in rows.values()) >= _NUM_HOLES - 1
    assert "sum(" in rows["shop/cart.py", "<FILL>"]["text"]
    assert "Math.min(" in rows["web/clamp.js", "clamp"]["text"]
    report = events[-1]["report"]
    assert isinstance(report, dict)
    assert report["engine"]["num_preemptions"] == 0
    assert report["engine"]["cached_share"] > 0, "holes of one file share what comes before them"

    with _start(workspace, "--format", "jsonl", *journals[1]) as process:
        assert process.stderr is not None
        while "settled" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    code_again, again, _ = _run(workspace, "--format", "jsonl", *journals[1])
    assert (code_again, again) == (code, whole)

    code_applied, _, events = _run(workspace, "--apply", *journals[0])
    assert code_applied == code
    assert [event["event"] for event in events] == ["planned", *["settled"] * _NUM_HOLES, "done"], "no model was needed"
    ast.parse((workspace / "shop/cart.py").read_text())
    assert "<FILL>" not in (workspace / "shop/cart.py").read_text()
    assert (workspace / "shop/item.py").read_text() == _FILES["shop/item.py"]


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_the_process_stays_within_the_memory_it_may_take(workspace: Path, tmp_path: Path, kernels: str) -> None:
    """Also while it loads, and packs the weights the first time.

    How much is enough for four bits, the error says: 50 MiB more after an installation than after a restart of the
    system (see ``memory.WORK_BYTES``).
    """
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "models").symlink_to(models_dir())
    variables = {"MIDLINE_CACHE_DIR": str(cache)}
    try:
        _allow(1, kernels)
        with _start(workspace, **variables) as process:
            _, err = process.communicate(timeout=240)
        found = re.search(r"set it to (\d+)", err)
        assert found, err
        cap_mb = int(found[1])
        _allow(cap_mb, kernels)
        for name in ("packed now", "packed before"):
            _, _, events = _run(workspace, "--journal", str(tmp_path / name), **variables)
            report = events[-1]["report"]
            assert isinstance(report, dict)
            engine = report["engine"]
            assert engine["precision"] == "int4"
            assert engine["num_preemptions"] == 0
            assert 2**30 < engine["peak_memory_bytes"] <= cap_mb * 2**20, (name, engine["peak_memory_bytes"] / 2**20)
    finally:
        shutil.rmtree(cache)  # hundreds of megabytes


def _allow(max_memory_mb: int, kernels: str) -> None:
    path = Path(os.environ["MIDLINE_CONFIG"])
    path.write_text(f'[engine]\nmax_memory_mb = {max_memory_mb}\nkernels = "{kernels}"\n')
