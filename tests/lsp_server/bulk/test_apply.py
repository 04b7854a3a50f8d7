"""Files are written whole or not at all, keep all that is not a hole's, and are given back."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsp_server.bulk import apply as apply_module
from lsp_server.bulk import files as files_module
from lsp_server.bulk.apply import Backups, FileOutcome, FileState, apply
from lsp_server.bulk.files import filled_in, replace_file
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import Hole, SourceText
from tests.house.source import ROOT
from tests.support.bulk_files import fill, hole_in, source_of, write_source
from tests.support.mounts import small_disk

_NOBODY = 65534


def _states(outcomes: list[FileOutcome]) -> list[FileState]:
    return [outcome.state for outcome in outcomes]


def _tree(root: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _one_fill(root: Path, content: bytes = b"x = <FILL>\n", text: str = "1") -> Fill:
    return fill(hole_in(write_source(root, "a.py", content), "<FILL>"), text)


def test_holes_of_several_files_are_filled(tmp_path: Path) -> None:
    one = write_source(tmp_path, "one.py", b"a = <A>\nb = <B>\nc = <C>\n")
    two = write_source(tmp_path, "folder/two.py", b"def f():\n    <A>\n")
    write_source(tmp_path, "three.py", b"<A>")
    fills = [
        fill(hole_in(one, "<C>"), "3"),
        fill(hole_in(two, "<A>", before_fill='"""', after_fill='"""\n    '), "Doc.\n\n    More."),
        fill(hole_in(one, "<A>"), "1"),
        fill(hole_in(one, "<B>"), "2", FillState.FAILED, reason="it repeats itself"),
    ]
    assert apply(fills, Backups()) == [
        FileOutcome("one.py", FileState.WRITTEN, 2),
        FileOutcome("folder/two.py", FileState.WRITTEN, 1),
    ]
    assert _tree(tmp_path) == {
        "one.py": b"a = 1\nb = <B>\nc = 3\n",
        "folder/two.py": b'def f():\n    """Doc.\n\n    More."""\n    \n',
        "three.py": b"<A>",
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\r\n<H>\r\nb\n", b"a\r\n1\r\n2\r\nb\n"),
        (b"a\n<H>\nb\r\n", b"a\n1\n2\nb\r\n"),
        (b"\xef\xbb\xbfa\r\n<H>", b"\xef\xbb\xbfa\r\n1\r\n2"),
        (b"a\rb\r<H>\r", b"a\rb\r1\r2\r"),
        (b"<H>", b"1\n2"),
        ("ä\r\n\u2028\x0b<H>\x85\r\n".encode(), "ä\r\n\u2028\x0b1\r\n2\x85\r\n".encode()),
    ],
)
def test_line_ends_outside_are_kept_and_the_fill_has_the_files(tmp_path: Path, content: bytes, expected: bytes) -> None:
    source = write_source(tmp_path, "a.txt", content)
    apply([fill(hole_in(source, "<H>"), "1\n2")], Backups())
    assert source.path.read_bytes() == expected


# A hole's edge never divides a line end: no part ends in "\r".
_PARTS = st.tuples(
    st.text(["\n", "\r", "x", " ", "\t", "ä", "𝔸", "\u2028", "\ufeff", "\0"], max_size=6),
    st.sampled_from(["\n", "\r\n", "x", "\t"]),
).map("".join)


@st.composite
def _files_with_holes(draw: st.DrawFn) -> tuple[bool, list[str], list[tuple[str, str]]]:
    """With or without byte order mark; parts that stay; between them what is replaced, and by what."""
    parts = draw(st.lists(_PARTS, min_size=1, max_size=5))
    holes = st.tuples(st.sampled_from(["", "h", "h\r\nh", "h\rh\n"]), st.text("ab\nä", max_size=5))
    return draw(st.booleans()), parts, draw(st.lists(holes, min_size=len(parts), max_size=len(parts)))


@settings(max_examples=100, derandomize=True, deadline=None)
@given(drawn=_files_with_holes())
def test_only_holes_change(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[bool, list[str], list[tuple[str, str]]]
) -> None:
    has_bom, parts, holes = drawn
    bom = "\ufeff" if has_bom else "."
    raw, spans = bom, []
    for part, (replaced, _) in zip(parts, holes, strict=True):
        start = len(_lf(raw.removeprefix("\ufeff")))
        spans.append((start, start + len(_lf(replaced))))
        raw += replaced + part
    source = write_source(tmp_path_factory.mktemp("holes"), "f", raw.encode())
    fills = [
        fill(Hole(source, "k", start, end, before_fill="<", after_fill=">"), text)
        for (start, end), (_, text) in zip(spans, holes, strict=True)
    ]
    apply(fills[::-1], Backups())
    new = ["<" + text.replace("\n", source.eol) + ">" for _, text in holes]
    expected = bom + "".join(text + part for text, part in zip(new, parts, strict=True))
    assert source.path.read_bytes() == expected.encode()


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# ---- taking back


def test_fills_are_taken_back_one_by_one(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a.py", b"a = <A>\r\nb = <B>\r\n")
    fills = [fill(hole_in(source, "<A>"), "1"), fill(hole_in(source, "<B>"), "2")]
    backups = Backups()
    assert backups.hint == ""
    assert _states(apply(fills, backups)) == [FileState.WRITTEN]
    fills[0] = replace(fills[0], state=FillState.REVERTED)
    assert apply(fills, backups) == [FileOutcome("a.py", FileState.WRITTEN, 1)]
    assert source.path.read_bytes() == b"a = <A>\r\nb = 2\r\n"
    assert _states(apply(fills, backups)) == [FileState.UNCHANGED]
    fills[1] = replace(fills[1], state=FillState.REVERTED)
    assert _states(apply(fills, backups)) == [FileState.WRITTEN]
    assert source.path.read_bytes() == b"a = <A>\r\nb = <B>\r\n"
    fills[0] = replace(fills[0], state=FillState.FILLED)
    apply(fills, backups)
    assert source.path.read_bytes() == b"a = 1\r\nb = <B>\r\n"


def test_backups_hold_the_files_as_they_were_and_the_hint_says_where(tmp_path: Path) -> None:
    source = write_source(tmp_path, "src/a.py", b"\xef\xbb\xbfa = <A>\r\n")
    backups = Backups()
    apply([fill(hole_in(source, "<A>"), "1")], backups)
    assert backups.folder is not None
    assert backups.folder.parent.parent.parent == Path(os.environ["MIDLINE_STATE_DIR"])
    assert backups.hint == f"to undo, copy {backups.folder} over the workspace"
    assert stat.S_IMODE(backups.folder.stat().st_mode) == 0o700
    assert backups.original(source) == b"\xef\xbb\xbfa = <A>\r\n"
    subprocess.run(["cp", "-r", f"{backups.folder}/.", str(tmp_path)], check=True)
    assert _tree(tmp_path) == {"src/a.py": b"\xef\xbb\xbfa = <A>\r\n"}


def test_of_old_runs_some_are_kept(tmp_path: Path) -> None:
    folders = []
    for number in range(apply_module._MAX_KEPT_RUNS + 3):
        backups = Backups()
        apply([_one_fill(tmp_path / str(number))], backups)
        assert backups.folder is not None
        renamed = backups.folder.with_name(f"2000-01-01-{number:06}")  # all in one second
        folders.append(backups.folder.rename(renamed))
    assert sorted(folders[0].parent.iterdir()) == folders[3:]


def test_nothing_good_is_nothing_written(tmp_path: Path) -> None:
    failed = replace(_one_fill(tmp_path), state=FillState.FAILED)
    backups = Backups()
    assert apply([failed], backups) == [FileOutcome("a.py", FileState.UNCHANGED, 0)]
    assert backups.folder is None
    assert apply([], backups) == []


# ---- conflicts


def _change(path: Path) -> None:
    path.write_bytes(b"x = <FILM>\n")


def _touch_with_old_time(path: Path) -> None:
    status = path.stat()
    path.write_bytes(b"x = <FILM>\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _delete_folder(path: Path) -> None:
    path.unlink()
    path.parent.rmdir()


def _folder_becomes_file(path: Path) -> None:
    _delete_folder(path)
    path.parent.write_bytes(b"")


@pytest.mark.parametrize(
    ("what", "state", "reason"),
    [
        (_change, FileState.CONFLICT, "a.py has changed since its holes were selected; run the command again"),
        (
            _touch_with_old_time,
            FileState.CONFLICT,
            "a.py has changed since its holes were selected; run the command again",
        ),
        (os.unlink, FileState.CONFLICT, "a.py was deleted since its holes were selected"),
        (_delete_folder, FileState.CONFLICT, "a.py was deleted since its holes were selected"),
        (_folder_becomes_file, FileState.CONFLICT, "a.py was deleted since its holes were selected"),
        (_replace_by_folder, FileState.FAILED, "cannot write a.py: Is a directory"),
    ],
)
def test_what_others_did_stays(tmp_path: Path, what: Callable[[Path], None], state: FileState, reason: str) -> None:
    bad, good = _one_fill(tmp_path / "folder"), _one_fill(tmp_path / "other")
    what(bad.hole.source.path)
    before = _tree(tmp_path / "folder")
    outcomes = apply([bad, good], Backups())
    assert outcomes[0] == FileOutcome("a.py", state, 1, reason)
    assert outcomes[1].state is FileState.WRITTEN  # others go on
    assert _tree(tmp_path / "folder") == before


def test_a_file_that_was_only_touched_is_written(tmp_path: Path) -> None:
    one = _one_fill(tmp_path)
    os.utime(one.hole.source.path, (0, 0))
    assert _states(apply([one], Backups())) == [FileState.WRITTEN]


def test_a_change_after_ours_is_not_taken_back(tmp_path: Path) -> None:
    one, backups = _one_fill(tmp_path), Backups()
    apply([one], backups)
    one.hole.source.path.write_bytes(b"x = 1  # well\n")
    outcomes = apply([replace(one, state=FillState.REVERTED)], backups)
    assert _states(outcomes) == [FileState.CONFLICT]
    assert one.hole.source.path.read_bytes() == b"x = 1  # well\n"
    one.hole.source.path.unlink()
    assert _states(apply([replace(one, state=FillState.REVERTED)], backups)) == [FileState.CONFLICT]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_change_in_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool) -> None:
    one = _one_fill(tmp_path)
    path = one.hole.source.path
    copy = files_module._copy_attributes

    def and_then(*paths: Path) -> None:
        copy(*paths)
        path.unlink() if is_deleted else _change(path)

    monkeypatch.setattr(files_module, "_copy_attributes", and_then)
    (outcome,) = apply([one], Backups())
    assert outcome.state is FileState.CONFLICT
    assert outcome.reason.startswith("a.py was deleted" if is_deleted else "a.py was changed at this moment")
    assert _tree(tmp_path) == ({} if is_deleted else {"a.py": b"x = <FILM>\n"})


# ---- what a file has beside its content


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o664])
def test_permissions_are_kept(tmp_path: Path, mode: int) -> None:
    one = _one_fill(tmp_path)
    path = one.hole.source.path
    path.chmod(mode)
    os.utime(path, (0, 0))
    apply([one], Backups())
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.stat().st_mtime > 1e9  # builds see that it has changed


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_is_kept(tmp_path: Path) -> None:
    one = _one_fill(tmp_path)
    os.chown(one.hole.source.path, _NOBODY, _NOBODY)
    apply([one], Backups())
    status = one.hole.source.path.stat()
    assert (status.st_uid, status.st_gid) == (_NOBODY, _NOBODY)


_WRITE_AS_NOBODY = """
import os, sys
from pathlib import Path
from lsp_server.bulk.files import replace_file

os.chdir(sys.argv[1])
os.setgroups([int(sys.argv[2])])
os.setgid(65534)
os.setuid(65534)
try:
    replace_file(Path("a.py"), b"new")
except OSError as error:
    sys.stdout.write(error.strerror)
"""
_GROUP, _OTHER_GROUP = 4242, 4243


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize(
    ("uid", "gid", "other"),
    [(_NOBODY, _NOBODY, ""), (_NOBODY, _GROUP, ""), (_NOBODY, _OTHER_GROUP, "group"), (1, _GROUP, "owner")],
)
def test_a_file_is_never_taken_from_its_owner_or_group(tmp_path: Path, uid: int, gid: int, other: str) -> None:
    path = write_source(tmp_path, "a.py", b"old").path
    os.chown(path, uid, gid)
    path.chmod(0o660)
    tmp_path.chmod(0o777)
    command = [sys.executable, "-c", _WRITE_AS_NOBODY, str(tmp_path), str(_GROUP)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (uid, gid, 0o660)
    expected = f"its {other} would be another; run the command as somebody who can keep it" if other else ""
    assert (said, _tree(tmp_path)) == (expected, {"a.py": b"old" if other else b"new"})


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_a_file_whose_owner_cannot_be_kept_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    one = _one_fill(tmp_path)
    os.chown(one.hole.source.path, _NOBODY, -1)
    backups = Backups()
    monkeypatch.setattr(files_module.os, "chown", refuse)
    (outcome,) = apply([one], backups)
    assert outcome.state is FileState.FAILED
    assert outcome.reason.startswith("cannot write a.py: its owner would be another; run the command as ")
    assert (backups.hint, _tree(tmp_path)) == ("", {"a.py": b"x = <FILL>\n"})


@pytest.mark.skipif(sys.platform != "linux", reason="extended attributes as Linux has them")
def test_extended_attributes_are_kept(tmp_path: Path) -> None:
    one = _one_fill(tmp_path)
    try:
        os.setxattr(one.hole.source.path, "user.note", b"mine")
    except OSError as error:
        pytest.skip(f"not on this file system: {error}")
    apply([one], Backups())
    assert os.getxattr(one.hole.source.path, "user.note") == b"mine"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = write_source(tmp_path, "far/real.py", b"x = <FILL>\n").path
    link = tmp_path / "near" / "link.py"
    link.parent.mkdir()
    link.symlink_to("../far/real.py")
    assert _states(apply([fill(hole_in(source_of(link, "near/link.py"), "<FILL>"), "1")], Backups())) == [
        FileState.WRITTEN
    ]
    assert link.is_symlink()
    assert real.read_bytes() == b"x = 1\n"
    assert sorted(_tree(tmp_path)) == ["far/real.py", "near/link.py"]


def test_two_names_of_one_file_do_not_overwrite_each_other(tmp_path: Path) -> None:
    real = write_source(tmp_path, "real.py", b"x = <A>\ny = <B>\n")
    (tmp_path / "link.py").symlink_to("real.py")
    link = source_of(tmp_path / "link.py", "link.py")
    outcomes = apply([fill(hole_in(real, "<A>"), "1"), fill(hole_in(link, "<B>"), "2")], Backups())
    assert _states(outcomes) == [FileState.WRITTEN, FileState.CONFLICT]
    assert real.path.read_bytes() == b"x = 1\ny = <B>\n"


# ---- disks


def test_a_read_only_file(tmp_path: Path) -> None:
    one = _one_fill(tmp_path)
    one.hole.source.path.chmod(0o444)
    assert apply([one], Backups()) == [FileOutcome("a.py", FileState.FAILED, 1, "cannot write a.py: it is read-only")]
    assert _tree(tmp_path) == {"a.py": b"x = <FILL>\n"}


def test_a_read_only_tree(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_kb=64) as disk:
        one = _one_fill(disk)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        (outcome,) = apply([one], Backups())
        assert outcome == FileOutcome("a.py", FileState.FAILED, 1, "cannot write a.py: it is read-only")
        assert _tree(disk) == {"a.py": b"x = <FILL>\n"}


def test_a_folder_that_takes_no_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    one, backups = _one_fill(tmp_path), Backups()
    other = _one_fill(tmp_path / "b")
    apply([other], backups)
    monkeypatch.setattr(files_module.os, "open", refuse)  # root may write anywhere
    assert apply([one], backups)[0].reason == "cannot write a.py: Permission denied"
    assert one.hole.source.path.read_bytes() == b"x = <FILL>\n"


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_kb=64) as disk:
        content = b"# " + b"x" * 30_000 + b"\nx = <FILL>\n"
        one = _one_fill(disk, content, "1" * 20_000)  # the new file does not fit beside the old one
        small = fill(hole_in(write_source(disk, "b.py", b"y = <FILL>\n"), "<FILL>"), "2")
        outcomes = apply([one, small], Backups())
        assert outcomes == [
            FileOutcome("a.py", FileState.FAILED, 1, "cannot write a.py: No space left on device"),
            FileOutcome("b.py", FileState.WRITTEN, 1),
        ]
        assert _tree(disk) == {"a.py": content, "b.py": b"y = 2\n"}


def test_a_second_write_that_fails_leaves_the_first(tmp_path: Path) -> None:
    """And the file is still known as ours, so that it can be taken back later."""
    with small_disk(tmp_path / "disk", size_kb=64) as disk:
        one, backups = _one_fill(disk, text="1" * 5_000), Backups()
        apply([one], backups)
        written = one.hole.source.path.read_bytes()
        filler = disk / "filler"
        filler.write_bytes(b"x" * 40_000)
        larger = replace(one, text="2" * 30_000)
        assert _states(apply([larger], backups)) == [FileState.FAILED]
        assert one.hole.source.path.read_bytes() == written
        filler.unlink()
        assert _states(apply([replace(one, state=FillState.REVERTED)], backups)) == [FileState.WRITTEN]
        assert _tree(disk) == {"a.py": b"x = <FILL>\n"}


def test_without_room_for_the_backup_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", size_kb=64) as disk:
        monkeypatch.setenv("MIDLINE_STATE_DIR", str(disk))
        one = _one_fill(tmp_path / "src", b"#" * 100_000 + b"\nx = <FILL>\n")
        assert _states(apply([one], Backups())) == [FileState.FAILED]
        assert one.hole.source.path.read_bytes().endswith(b"<FILL>\n")
        assert [path for path in disk.rglob("*") if path.is_file()] == []


def test_what_a_killed_write_has_left_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = _one_fill(tmp_path)
    write_source(tmp_path, "b.py", b"")
    monkeypatch.setattr(files_module.os, "unlink", lambda _: None)

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(one.hole.source.path, b"half", die)
    monkeypatch.undo()
    assert len(_tree(tmp_path)) == 3
    replace_file(tmp_path / "b.py", b"whole")
    assert len(_tree(tmp_path)) == 3  # it may be somebody's who is writing now
    replace_file(one.hole.source.path, b"whole")
    assert _tree(tmp_path) == {"a.py": b"whole", "b.py": b"whole"}


def test_two_that_write_a_file_at_once_leave_each_other_alone(tmp_path: Path) -> None:
    path = write_source(tmp_path, "a.py", b"old").path
    replace_file(path, b"first", lambda: replace_file(path, b"second"))
    assert _tree(tmp_path) == {"a.py": b"first"}


def test_a_file_that_was_taken_for_a_left_one_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes it in the moment before it is locked."""
    fcntl = pytest.importorskip("fcntl")
    lock, num_taken = fcntl.flock, 0

    def take_first(*arguments: object) -> None:
        nonlocal num_taken
        if not num_taken:
            (left,) = tmp_path.glob(".midline-*")
            left.unlink()
            num_taken += 1
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", take_first)
    replace_file(tmp_path / "a.py", b"new")
    assert (num_taken, _tree(tmp_path)) == (1, {"a.py": b"new"})


def test_names_as_long_as_they_may_be(tmp_path: Path) -> None:
    source = write_source(tmp_path, "n" * 255, b"<FILL>")
    assert _states(apply([fill(hole_in(source, "<FILL>"), "1")], Backups())) == [FileState.WRITTEN]


def test_a_file_is_on_the_disk_before_it_takes_the_old_ones_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, call=call, name=name: (calls.append(name), call(*args)))
    replace_file(tmp_path / "a", b"x")
    assert calls == ["fsync", "replace"]


def test_filled_in_takes_fills_in_any_order() -> None:
    source = SourceText(Path("/x"), "x", "", "1234", "", 0, 0)
    fills = [fill(Hole(source, "k", at, at + 1), chr(65 + at)) for at in (3, 0, 2)]
    assert filled_in(b"1234", fills) == b"A2CD"
    touching = [
        fill(Hole(source, "k", 1, 1), "x"),
        fill(Hole(source, "k", 0, 1), "y"),
        fill(Hole(source, "k", 1, 2), "z"),
    ]
    assert filled_in(b"1234", touching) == b"yxz34"
