import json
from pathlib import Path
from typing import Any

import pytest

from lsp_server.bulk.holes import Hole
from lsp_server.bulk.select import SelectOptions, select
from lsp_server.errors import UsageError
from tests.support.bulk_sources import drawn

TEXT = "def f(x):\n    y = \n    return y\n\n\ndef g():\n    \n"


def cursors(root: Path, *lines: dict[str, Any] | str, text: str = TEXT) -> list[Hole]:
    """The holes of these lines in a workspace with one file."""
    (root / "a.py").write_text(text, encoding="utf-8")
    file = root.parent / "cursors.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return list(select(root, [], SelectOptions(kinds=("cursors",), cursors_file=file)).holes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


def at(line: int, column: int, **more: Any) -> dict[str, Any]:
    return {"file": "a.py", "line": line, "column": column, **more}


def test_places_count_from_one_in_characters(root: Path) -> None:
    holes = cursors(root, at(2, 8), at(1, 7), text="é = 'ä😀'\nprint(😀é)\n")
    assert drawn(holes) == "é = 'ä@😀'\nprint(😀@é)\n"
    assert [(hole.line, hole.column) for hole in holes] == [(1, 7), (2, 8)]
    assert {hole.kind for hole in holes} == {"cursors"}


def test_an_end_says_what_is_replaced(root: Path) -> None:
    holes = cursors(root, at(1, 7, end_column=8), at(2, 5, end_line=3, end_column=13))
    assert drawn(holes) == "def f(@):\n    @\n\n\ndef g():\n    \n"
    assert [hole.is_block for hole in holes] == [False, True]


def test_a_block_begins_where_it_would_in_an_editor_unless_told(root: Path) -> None:
    rest, blank = cursors(root, at(2, 9), at(7, 5))
    assert (rest.is_block, rest.min_indent) == (False, 0)
    assert (blank.is_block, blank.min_indent) == (True, 4)
    rest, blank = cursors(root, at(2, 9, multiline=True), at(7, 5, multiline=False))
    assert (rest.is_block, rest.min_indent) == (True, 4)
    assert (blank.is_block, blank.min_indent) == (False, 0)


def test_a_line_may_say_how_much(root: Path) -> None:
    assert [hole.max_tokens for hole in cursors(root, at(1, 1), at(2, 1, max_tokens=3))] == [256, 3]


def test_the_first_and_the_last_place_of_a_file(root: Path) -> None:
    assert drawn(cursors(root, at(1, 1), at(8, 1))) == "@" + TEXT + "@"
    assert drawn(cursors(root, at(1, 1), text="")) == "@"


def test_blank_lines_and_a_byte_order_mark_are_nothing(root: Path) -> None:
    assert len(cursors(root, "\ufeff" + json.dumps(at(1, 1)), "", "  ", at(2, 1), "")) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", r"is not JSON; write \{"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "is not a JSON object"),
        ({"file": "a.py", "line": 1}, "'column' is missing"),
        ({"line": 1, "column": 1}, "'file' is missing"),
        (at(1, 1, row=3), "unknown key 'row'; known are file, line, column"),
        (at(0, 1), "'line' is not a whole number from 1"),
        (at(1, 1, max_tokens=True), "'max_tokens' is not a whole number from 1"),
        (at(1, 1, end_column=1.5), "'end_column' is not a whole number from 1"),
        (at(1, 1, multiline=1), "'multiline' is not true or false"),
        (at(1, 1, end_line=2), "'end_line' is given without 'end_column'"),
        (at(2, 3, end_column=2), "the end is before the start"),
        (at(9, 1), "line 9 is outside a.py; it has lines 1 to 8"),
        (at(1, 11), "column 11 is outside line 1 of a.py; it has columns 1 to 10"),
        (at(1, 1, end_line=99, end_column=1), "line 99 is outside a.py"),
        (at(10**30, 1), "is outside a.py"),
        ({"file": 1, "line": 1, "column": 1}, "'file' is not a path"),
        ({"file": "b.py", "line": 1, "column": 1}, "no such file"),
        ({"file": ".", "line": 1, "column": 1}, "is a folder; give a file"),
        ({"file": "../cursors.jsonl", "line": 1, "column": 1}, "is outside the workspace"),
        ({"file": "a\0.py", "line": 1, "column": 1}, "cannot read"),
        ({"file": ".env", "line": 1, "column": 1}, "may hold secrets and is never read"),
        ({"file": "binary.py", "line": 1, "column": 1}, "binary.py is a binary file"),
    ],
)
def test_a_bad_line_is_named(root: Path, line: dict[str, Any] | str, reason: str) -> None:
    (root / ".env").write_text("TOKEN=1\n")
    (root / "binary.py").write_bytes(b"\0")
    with pytest.raises(UsageError, match=rf"cursors\.jsonl:2: .*{reason}") as caught:
        cursors(root, at(1, 1), line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("second", [at(2, 9), at(1, 8, end_line=2, end_column=9)])
def test_two_cursors_at_one_place(root: Path, second: dict[str, Any]) -> None:
    with pytest.raises(
        UsageError, match=r"cursors\.jsonl:\d: is the same place as .*cursors\.jsonl:\d, or overlaps it"
    ):
        cursors(root, at(2, 9), at(1, 1), second, at(1, 9, end_line=3, end_column=1))


def test_the_same_place_twice(root: Path) -> None:
    with pytest.raises(UsageError, match="is the same place as"):
        cursors(root, at(2, 9), at(2, 9))


def test_what_replaces_several_lines_may_have_several(root: Path) -> None:
    (hole,) = cursors(root, at(2, 9, end_line=3, end_column=13))
    assert (hole.is_block, hole.min_indent) == (True, 4)


def test_two_cursors_that_only_touch(root: Path) -> None:
    assert len(cursors(root, at(1, 1, end_column=4), at(1, 4, end_column=5), at(1, 5))) == 3


@pytest.mark.parametrize(("content", "reason"), [(None, "cannot read .*No such file"), (b"\xff\xfe", "is not UTF-8")])
def test_a_file_of_cursors_that_cannot_be_read(root: Path, content: bytes | None, reason: str) -> None:
    file = root / "cursors.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        select(root, [], SelectOptions(kinds=("cursors",), cursors_file=file))


def test_the_kind_and_its_file_need_each_other(root: Path) -> None:
    for options in (SelectOptions(kinds=("cursors",)), SelectOptions(cursors_file=root / "c")):
        with pytest.raises(UsageError, match="need each other"):
            select(root, [], options)


def test_a_file_with_a_cursor_may_be_ignored_but_then_has_no_other_holes(root: Path) -> None:
    (root / ".gitignore").write_text("a.py\n")
    (root / "b.py").write_text("<FILL>\n")
    cursors(root, at(1, 1), text="<FILL>\n<FILL>\n")
    options = SelectOptions(kinds=("markers", "cursors"), cursors_file=root.parent / "cursors.jsonl")
    holes = select(root, [], options).holes
    assert [(hole.source.relative, hole.kind) for hole in holes] == [("a.py", "cursors"), ("b.py", "markers")]


def test_a_cursor_comes_before_other_kinds(root: Path) -> None:
    cursors(root, at(1, 3), text="<FILL>\n<FILL>\n")
    options = SelectOptions(kinds=("markers", "cursors"), cursors_file=root.parent / "cursors.jsonl")
    assert [(hole.line, hole.kind) for hole in select(root, [], options).holes] == [(1, "cursors"), (2, "markers")]
