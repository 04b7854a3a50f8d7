"""Which fills a check takes back, without the command line around it."""

import subprocess
import sys
from pathlib import Path

import pytest

from lsp_server.bulk.apply import FileOutcome, FileState
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


_FORMAT = f"""{sys.executable} -c "
import pathlib
for path in pathlib.Path().glob('*.py'):
    path.write_text(path.read_text().replace('(1 )', '(1)').replace('  # tidy', ''))
" && """


@pytest.mark.parametrize("is_bad", [False, True])
def test_a_check_that_formats_the_files_is_told_only_when_it_is_in_the_way(tmp_path: Path, is_bad: bool) -> None:
    """What it has changed is not taken back, since it could be somebody else's work."""
    source_a, source_b = write_source(tmp_path, "a.py", b"x = <A>\ny = <B>\n"), write_source(tmp_path, "b.py", b"<C>\n")
    fills = [
        fill(hole_in(source_a, "<A>"), "(1 )"),
        fill(hole_in(source_a, "<B>"), "bad" if is_bad else "2"),
        fill(hole_in(source_b, "<C>"), "z = 3"),
    ]
    with one_step(tmp_path / "log", pytest.fail) as step:
        check = Check(_FORMAT + "! grep -q bad a.py", tmp_path, lambda event: None)
        outcome, files = check.keep_passing(fills, step)
    assert (tmp_path / "a.py").read_text() == f"x = (1)\ny = {'bad' if is_bad else '2'}\n"
    states = [each.state for each in outcome]
    if not is_bad:
        assert states == [FillState.FILLED] * 3
        assert {file.state for file in files} == {FileState.WRITTEN}
        return
    assert states[:2] == [FillState.FAILED] * 2
    assert {each.reason for each in outcome[:2]} == {"the check fails with it, but it could not be taken back"}
    assert [file.state for file in files] == [FileState.CONFLICT, FileState.WRITTEN]
    assert files[0].reason.startswith(
        "a.py was changed while the check ran, perhaps by it, so that fills with which it"
    )
    assert (states[2] is FillState.FILLED) is ("z = 3" in (tmp_path / "b.py").read_text())


def test_what_a_check_changes_without_any_fill_is_a_conflict(tmp_path: Path) -> None:
    """The same command again finds the files as the check leaves them."""
    source = write_source(tmp_path, "a.py", b"x = <A>  # tidy\n")
    check = Check(_FORMAT + "true", tmp_path, lambda event: None)
    check.try_without_fills(["a.py"])
    with one_step(tmp_path / "log", pytest.fail) as step:
        _, files = check.keep_passing([fill(hole_in(source, "<A>"), "1")], step)
    reason = "a.py has changed since its holes were selected; run the command again"
    assert files == [FileOutcome("a.py", FileState.CONFLICT, 1, reason)]
    assert (tmp_path / "a.py").read_text() == "x = <A>\n"
