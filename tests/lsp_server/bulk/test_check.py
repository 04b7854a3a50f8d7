"""Which fills a check takes back, without the command line around it."""

import subprocess
import sys
from pathlib import Path

import pytest

from lsp_server.bulk.check import FILE, Check
from lsp_server.bulk.events import Checking
from lsp_server.bulk.fills import FillState
from lsp_server.bulk.undo import one_step
from tests.support.bulk_files import fill, hole_in, write_source

_COMMAND = f"{sys.executable} -B {FILE}"
_A = b"from b import g\n\n\ndef f():\n    return None\n\n\nassert f() in (None, 1)\n"
_B = b"def g():\n    return\n\n\nassert g() in (None, 2) or __name__ != '__main__'\n"


@pytest.mark.parametrize(
    ("in_b", "states", "num_runs"),
    [
        ("return 2", (FillState.FILLED, FillState.FILLED), 4),
        # the first file's fill passes only beside the second's, which is taken back later
        ("return 1", (FillState.REVERTED, FillState.REVERTED), 5),
    ],
)
def test_what_is_kept_passes_without_what_is_taken_back(
    tmp_path: Path, in_b: str, states: tuple[FillState, ...], num_runs: int
) -> None:
    source_a, source_b = write_source(tmp_path, "a.py", _A), write_source(tmp_path, "b.py", _B)
    fills = [fill(hole_in(source_a, "return None"), "return 7 if g() is None else 1")]
    fills += [fill(hole_in(source_b, "return\n"), in_b + "\n")]
    events: list[Checking] = []
    check = Check(_COMMAND, tmp_path, events.append)  # type: ignore[arg-type]
    check.try_without_fills(["a.py", "b.py"])
    with one_step(tmp_path / "log", pytest.fail) as step:
        outcome, _ = check.keep_passing(fills, step)
    assert tuple(each.state for each in outcome) == states
    assert len(events) == num_runs
    for name in ("a.py", "b.py"):
        subprocess.run(_COMMAND.replace(FILE, name), shell=True, cwd=tmp_path, check=True)
