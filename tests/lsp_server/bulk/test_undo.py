"""Writing many files as one step, whatever ends it in the middle."""

from dataclasses import replace
from pathlib import Path

import pytest

from lsp_server.bulk import apply as apply_module
from lsp_server.bulk import undo as undo_module
from lsp_server.bulk.apply import FileState
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.undo import Step, TakenBack, log_path, one_step, take_back
from tests.support.bulk_holes import marker_holes, source_with


def _fills(root: Path, names: str = "abc") -> list[Fill]:
    sources = [source_with(root, f"{name}.py", f"{name} = <FILL>\n") for name in names]
    return [Fill(hole, FillState.FILLED, "1") for source in sources for hole in marker_holes(source)]


def _texts(root: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(root.glob("*.py"))}


def _never(line: str) -> None:
    raise AssertionError(line)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return log_path(tmp_path / "journal")


def test_a_step_that_ends_well_leaves_no_log(tmp_path: Path, log: Path) -> None:
    with one_step(log, _never) as step:
        outcomes = step.write(_fills(tmp_path))
        assert log.stat().st_mode & 0o077 == 0, "it holds the user's code"
    assert {outcome.state for outcome in outcomes} == {FileState.WRITTEN}
    assert _texts(tmp_path) == {"a": "a = 1\n", "b": "b = 1\n", "c": "c = 1\n"}
    assert not log.exists()
    assert take_back(log) == TakenBack()


def test_an_error_takes_everything_back(tmp_path: Path, log: Path) -> None:
    fills = _fills(tmp_path)
    before = _texts(tmp_path)
    with pytest.raises(KeyboardInterrupt), one_step(log, _never) as step:
        step.write(fills)
        raise KeyboardInterrupt
    assert _texts(tmp_path) == before
    assert not log.exists()


@pytest.mark.parametrize("num_written", [0, 1, 2])
def test_what_was_written_before_a_kill_is_put_back_later(
    tmp_path: Path, log: Path, num_written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fills = _fills(tmp_path)
    before = _texts(tmp_path)
    _write_some(fills, log, num_written, monkeypatch)
    assert sum("1" in text for text in _texts(tmp_path).values()) == num_written
    assert take_back(log) == TakenBack(num_written)
    assert _texts(tmp_path) == before
    assert not log.exists()


def test_a_file_that_somebody_has_changed_since_stays(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fills = _fills(tmp_path)
    _write_some(fills, log, 2, monkeypatch)
    (tmp_path / "a.py").write_text("a = 1\nmine = 2\n")
    assert take_back(log) == TakenBack(1, (f"{tmp_path / 'a.py'} has changed since it was written; it stays as it is",))
    assert _texts(tmp_path) == {"a": "a = 1\nmine = 2\n", "b": "b = <FILL>\n", "c": "c = <FILL>\n"}


def test_each_version_that_was_written_can_be_put_back(tmp_path: Path, log: Path) -> None:
    source = source_with(tmp_path, "a.py", "a = <FILL>\nb = <FILL>\n")
    one, other = (Fill(hole, FillState.FILLED, "1") for hole in marker_holes(source))
    failed = [Fill(fill.hole, FillState.FAILED) for fill in (one, other)]
    for versions in ([[one, other]], [[one, other], [one, failed[1]]], [[failed[0], other], [one, other]]):
        with pytest.raises(OSError), one_step(log, _never) as step:
            for version in versions:
                step.write(version)
            assert "1" in (tmp_path / "a.py").read_text()
            raise OSError
        assert (tmp_path / "a.py").read_text() == "a = <FILL>\nb = <FILL>\n"


def test_a_file_that_cannot_be_put_back_is_told_and_tried_again(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are put back, and what ended the step stays the error."""
    fills, said = _fills(tmp_path), list[str]()
    before = _texts(tmp_path)
    replace_file = undo_module.replace_file

    def refuse(path: Path, content: bytes) -> None:
        if path.name == "a.py":
            raise PermissionError(13, "Permission denied")
        replace_file(path, content)

    monkeypatch.setattr(undo_module, "replace_file", refuse)
    with pytest.raises(KeyboardInterrupt), one_step(log, said.append) as step:
        step.write(fills)
        raise KeyboardInterrupt
    (line,) = said
    assert line.startswith(f"cannot put {tmp_path / 'a.py'} back: Permission denied; ")
    assert str(log) in line
    assert _texts(tmp_path) == before | {"a": "a = 1\n"}
    assert take_back(log).problems == (line,)
    monkeypatch.undo()
    assert take_back(log) == TakenBack(1)
    assert _texts(tmp_path) == before
    assert not log.exists()


def test_a_file_that_is_as_it_was_does_not_count(tmp_path: Path, log: Path) -> None:
    fills = _fills(tmp_path)
    Step(log).write([replace(fills[0], state=FillState.REVERTED), *fills[1:]])
    assert take_back(log) == TakenBack(2)


def test_a_log_that_cannot_be_read_hides_no_error(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(log: Path) -> None:
        raise PermissionError(13, "Permission denied")

    said: list[str] = []
    monkeypatch.setattr(undo_module, "_read", refuse)
    with pytest.raises(KeyboardInterrupt), one_step(log, said.append) as step:
        step.write(_fills(tmp_path))
        raise KeyboardInterrupt
    assert [line.partition(";")[0] for line in said] == [f"cannot use {log}: Permission denied"]
    assert log.exists()


def test_half_a_line_at_the_end_was_never_begun(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_some(_fills(tmp_path), log, 2, monkeypatch)
    log.write_text(log.read_text() + '["/tmp/x", "abc')
    assert take_back(log) == TakenBack(2)


def _write_some(fills: list[Fill], log: Path, num_files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run does that is killed after so many files."""
    step = Step(log)
    real = apply_module._write
    written: list[object] = []

    def write(*arguments: object) -> object:
        if len(written) == num_files:
            raise SystemExit
        written.append(arguments)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(apply_module, "_write", write)
    with pytest.raises(SystemExit):
        step.write(fills)
    monkeypatch.undo()
