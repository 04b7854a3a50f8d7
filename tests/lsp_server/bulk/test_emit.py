"""What a run found, in three forms: objects, a diff that real tools apply, and a table."""

import io
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from engine.request import Usage
from lsp_server.bulk.apply import Backups, apply
from lsp_server.bulk.emit import Diff, jsonl, summary, unified_diff, write_out
from lsp_server.bulk.files import filled_in
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import Hole
from lsp_server.errors import OutputError
from tests.support.bulk_files import fill, hole_in, write_source
from tests.support.mounts import small_disk

# ---- objects


def test_objects_are_in_the_order_of_the_fills(tmp_path: Path) -> None:
    source = write_source(tmp_path, "src/ä.py", b"def f():\r\n    <A>\r\n\r\ny = <B>\r\n")
    block = hole_in(source, "<A>", kind="docstrings", name="f", before_fill='"""', after_fill='"""')
    fills = [
        fill(block, "Dö.\n\n    It.", usage=Usage(100, 64, 7), mean_logprob=-0.5, num_attempts=2, is_from_journal=True),
        fill(hole_in(source, "<B>"), "", FillState.FAILED, reason="the model said nothing"),
        fill(hole_in(source, "<B>"), "1", FillState.REVERTED, reason="the check fails with it: make"),
    ]
    lines = jsonl(fills).splitlines()
    first, second, third = map(json.loads, lines)
    assert first == {
        "file": "src/ä.py",
        "line": 2,
        "column": 5,
        "end_line": 2,
        "end_column": 8,
        "kind": "docstrings",
        "name": "f",
        "state": "filled",
        "text": '"""Dö.\n\n    It."""',
        "reason": "",
        "usage": {"prompt_tokens": 100, "generated_tokens": 7},
        "attempts": 2,
        "key": "k",
    }
    assert (second["state"], second["text"], second["reason"]) == ("failed", "", "the model said nothing")
    assert (third["state"], third["text"], third["line"], third["column"]) == ("reverted", "", 4, 5)
    assert jsonl([]) == b""


def test_objects_do_not_tell_a_run_from_one_that_was_interrupted(tmp_path: Path) -> None:
    one = fill(hole_in(write_source(tmp_path, "a.py", b"<A>"), "<A>"), "1", usage=Usage(9, 8, 7, 6, 5))
    other = replace(one, usage=Usage(9, 0, 7, 0, 0), is_from_journal=True, mean_logprob=-0.1)
    assert jsonl([one]) == jsonl([other])


def test_a_hole_of_several_lines_ends_where_its_text_ends(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a.py", b"a\nbc\nd")
    (line,) = map(json.loads, jsonl([fill(Hole(source, "k", 1, 5), "x")]).splitlines())
    assert [line[name] for name in ("line", "column", "end_line", "end_column")] == [1, 2, 3, 1]


# ---- diffs


def _by_git(root: Path, diff: Diff) -> None:
    done = subprocess.run(["git", "apply", "-"], cwd=root, input=diff.content, capture_output=True, check=False)
    assert done.returncode == 0, (done.stderr, diff.content)


def _by_patch(root: Path, diff: Diff) -> None:
    command = ["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch"]
    done = subprocess.run(command, cwd=root, input=diff.content, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout, diff.content)
    assert b"fuzz" not in done.stdout
    assert b"offset" not in done.stdout


def _check_both_tools(root: Path, fills: list[Fill]) -> Diff:
    """Each tool makes of the files what ``apply`` makes of them."""
    paths = {one.hole.source.relative: one.hole.source.path for one in fills}
    originals = {name: path.read_bytes() for name, path in paths.items()}
    expected = {
        name: filled_in(content, [one for one in fills if one.hole.source.relative == name])
        for name, content in originals.items()
    }
    diff = unified_diff(fills)
    assert diff.problems == ()
    assert bool(diff.content) == (originals != expected)
    for tool in (_by_git, _by_patch) if diff.content else ():
        tool(root, diff)
        assert {name: path.read_bytes() for name, path in paths.items()} == expected, tool
        for name, path in paths.items():
            path.write_bytes(originals[name])
    return diff


@pytest.fixture
def root(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


_LONG = b"".join(b"line %d\n" % number for number in range(30))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a\n<H>\nb\n", "x"),
        (b"a\n<H>\nb\n", "x\ny\n\nz"),
        (b"a\n<H>", "x"),
        (b"a\n<H>", "x\n"),
        (b"<H>", "x"),
        (b"<H>\n", ""),
        (b"<H>", ""),
        (b"a\n<H>\nb", "x"),
        (b"\xef\xbb\xbf<H>\r\nb\r\n", "x\ny"),
        (b"\xef\xbb\xbfa\r\nb\nc\rd\r\n<H>\r\ne\rf", "x\ny"),
        (b"a = <H>\x0c\x0b\xc2\x85\xe2\x80\xa8b\n", "x"),
        (_LONG + b"<H>\n" + _LONG, "x\ny"),
        (_LONG + b"<H>" + _LONG, "line 1"),
        (b"same\n<H>\nsame\n", "same\nsame"),
        (b"--- a\n<H>\n+++ b\n@@ -1 +1 @@\n", "--- x\n+++ y\n@@ -1 +1 @@\n\\ No newline"),
    ],
)
def test_tools_apply_it(root: Path, content: bytes, text: str) -> None:
    source = write_source(root, "folder/a.py", content)
    _check_both_tools(root, [fill(hole_in(source, "<H>"), text)])


def test_an_empty_file_is_filled(root: Path) -> None:
    diff = _check_both_tools(root, [fill(Hole(write_source(root, "empty.py", b""), "cursors", 0, 0), "x\ny\n")])
    assert b"\n@@ -0,0 +1,2 @@\n+x\n+y\n" in diff.content


@pytest.mark.parametrize(
    "name",
    [
        "with space.py",
        "two  spaces/and more.py",
        "ümläut/文.py",
        'quo"te.py',
        "back\\slash.py",
        "tab\tand space.py",
        "line\nend.py",
        " leading and trailing ",
        "-dash",
        os.fsdecode(b"latin-\xe4.py"),
    ],
)
def test_names_are_no_trouble(root: Path, name: str) -> None:
    fills = [
        fill(hole_in(write_source(root, name, b"a\n<H>\n"), "<H>"), "x"),
        fill(hole_in(write_source(root, "plain.py", b"a\n<H>\n"), "<H>"), "x"),
    ]
    _check_both_tools(root, fills)


def test_holes_of_a_file_are_one_diff(root: Path) -> None:
    content = b"<A> <B>\n" + _LONG + b"<C>\nnear\n<D>\n" + _LONG + b"<E>\n"
    source, other = write_source(root, "a.py", content), write_source(root, "b.py", b"<A>\n")
    fills = [
        fill(hole_in(source, "<E>"), "5\n5"),
        fill(hole_in(other, "<A>"), "1"),
        fill(hole_in(source, "<A>"), "1\n1\n1"),
        fill(hole_in(source, "<C>"), "3"),
        fill(hole_in(source, "<D>"), "4"),
        fill(hole_in(source, "<B>"), "2"),
    ]
    diff = _check_both_tools(root, fills).content.decode()
    assert diff.count("diff --git ") == 2
    assert diff.startswith(
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,4 +1,6 @@\n-<A> <B>\n+1\n+1\n+1 2\n line 0\n"
    )
    assert diff.count("\n@@ ") == 4  # C and D share a hunk
    assert "\n@@ -62,4 +64,5 @@\n line 27\n line 28\n line 29\n-<E>\n+5\n+5\n" in diff


def test_only_good_fills_are_in_it(root: Path) -> None:
    source = write_source(root, "a.py", b"<A>\n<B>\n")
    failed = fill(hole_in(source, "<A>"), "", FillState.FAILED)
    reverted = fill(hole_in(source, "<B>"), "2", FillState.REVERTED)
    assert unified_diff([failed, reverted]) == Diff(b"")
    assert unified_diff([fill(hole_in(source, "<A>"), "<A>")]) == Diff(b"")
    assert unified_diff([failed, replace(reverted, state=FillState.FILLED)]).content.endswith(b"\n <A>\n-<B>\n+2\n")
    assert unified_diff([]) == Diff(b"")


def test_files_that_changed_are_told_and_left_out(root: Path) -> None:
    fills = [fill(hole_in(write_source(root, f"{n}.py", b"<A>\n"), "<A>"), "1") for n in range(4)]
    (root / "0.py").write_bytes(b"other")
    (root / "1.py").unlink()
    (root / "2.py").unlink()
    (root / "2.py").mkdir()
    diff = unified_diff(fills)
    assert diff.problems == (
        "0.py has changed since its holes were selected; run the command again",
        "1.py was deleted since its holes were selected",
        "cannot read 2.py: Is a directory",
    )
    assert diff.content == b"diff --git a/3.py b/3.py\n--- a/3.py\n+++ b/3.py\n@@ -1,1 +1,1 @@\n-<A>\n+1\n"


def test_it_is_the_same_after_applying(root: Path) -> None:
    fills = [fill(hole_in(write_source(root, "a.py", b"<A>\r\n"), "<A>"), "1")]
    before, backups = unified_diff(fills), Backups()
    apply(fills, backups)
    assert unified_diff(fills).problems
    assert unified_diff(fills, backups.original) == before


def test_many_equal_lines_take_no_longer(tmp_path: Path) -> None:
    content = b"".join(b"v%d\n" % (number * 7919 % 150) for number in range(100_000))
    source = write_source(tmp_path, "table.txt", content)
    starts = [number * 4000 for number in range(60)]
    fills = [fill(Hole(source, "k", start, start), "new") for start in starts]
    began = time.monotonic()
    diff = unified_diff(fills).content
    assert diff.count(b"\n@@ ") == 60
    assert len(diff.splitlines()) < 600
    assert time.monotonic() - began < 20  # a general comparison takes minutes; this less than a second


_PARTS = st.lists(st.sampled_from(["\n", "\r\n", "a", "b\n", "\ufeff", "ä"]), max_size=12).map(
    lambda pieces: "." + "".join(pieces)
)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    parts=st.lists(_PARTS, min_size=1, max_size=6),
    fills=st.lists(st.text("a\nb", max_size=6), min_size=6, max_size=6),
    replaced=st.lists(st.sampled_from(["", "h", "h\nh", "\r\n\n", "a\n"]), min_size=6, max_size=6),
)
def test_whatever_it_is_tools_make_the_same_of_it(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], fills: list[str], replaced: list[str]
) -> None:
    root = tmp_path_factory.mktemp("diff")
    raw, spans = "", []
    for part, hole in zip(parts, replaced, strict=False):
        start = len((raw + part).replace("\r\n", "\n"))
        spans.append((start, start + len(hole.replace("\r\n", "\n"))))
        raw += part + hole
    source = write_source(root, "a b", raw.encode())
    _check_both_tools(
        root, [fill(Hole(source, "k", *span), text) for span, text in zip(spans, fills, strict=False)][::-1]
    )


# ---- the table


def test_the_table_counts_kinds_states_and_reasons(tmp_path: Path) -> None:
    source = write_source(tmp_path, "a.py", b"<A>")
    marker, stub = hole_in(source, "<A>"), hole_in(source, "<A>", kind="stubs")
    fills = [
        fill(marker, "1"),
        fill(stub, "1"),
        fill(stub, "1"),
        fill(stub, "", FillState.FAILED, reason="it repeats itself"),
        fill(stub, "", FillState.FAILED, reason="it repeats itself"),
        fill(stub, "", FillState.REVERTED, reason="the check fails with it: make [all]"),
    ]
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(summary(fills))
    lines = console.export_text().splitlines()
    rows = [line.replace("│", " ").split() for line in lines]
    assert ["markers", "1", "0", "0", "1"] in rows
    assert ["stubs", "2", "2", "1", "5"] in rows
    assert ["all", "3", "2", "1", "6"] in rows
    assert lines[-2:] == ["2 × it repeats itself", "1 × the check fails with it: make [all]"]


# ---- --out


def test_out_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write_out(path, b"one")
    old_umask = os.umask(0o022)
    os.umask(old_umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~old_umask
    path.chmod(0o640)
    write_out(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_out_through_a_link_and_into_a_pipe(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("real")
    write_out(link, b"one")
    assert (tmp_path / "real").read_bytes() == b"one"
    assert link.is_symlink()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    write_out(pipe, b"two")
    assert reader.communicate(timeout=20)[0] == b"two"
    assert pipe.is_fifo()
    write_out(Path(os.devnull), b"three")
    assert not Path(os.devnull).is_file()


def test_out_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*/no/out: No such file or directory; name another .* --out"):
        write_out(tmp_path / "no" / "out", b"")
    with pytest.raises(OutputError, match="Is a directory"):
        write_out(tmp_path, b"")


def test_out_on_a_full_disk_leaves_the_old_one(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_kb=64) as disk:
        write_out(disk / "out", b"old")
        with pytest.raises(OutputError, match="No space left on device"):
            write_out(disk / "out", b"x" * 100_000)
        assert [(path.name, path.read_bytes()) for path in disk.iterdir()] == [("out", b"old")]
