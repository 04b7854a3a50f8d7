import pytest

from lsp_server.bulk.holes import KindOptions
from tests.support.bulk_sources import drawn, find


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.py", "# FILL"),
        ("a.py", "#FILL"),
        ("a.py", "# <FILL>"),
        ("a.py", "<FILL>"),
        ("a.c", "// FILL"),
        ("a.c", "/* FILL */"),
        ("a.c", "/*FILL*/"),
        ("a.lua", "-- FILL"),
        ("a.html", "<!-- FILL -->"),
        ("no_language", "<FILL>"),
    ],
)
def test_a_marker_alone_on_its_line_is_a_block_with_its_indentation(name: str, line: str) -> None:
    (hole,) = find("markers", name, f"above\n    {line}  \nbelow\n")
    assert hole.is_block
    assert hole.min_indent == 4
    assert drawn([hole]) == "above\n    @\nbelow\n"
    assert (hole.line, hole.column) == (2, 5)


def test_indentation_counts_tabs_as_completion_does() -> None:
    (hole,) = find("markers", "a.go", "func f() {\n\t\t// FILL\n}\n")
    assert hole.min_indent == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = f(<FILL>, 1)\n", "x = f(@, 1)\n"),
        ("x = <FILL>\n", "x = @\n"),
        ("x =  # FILL\n", "x = @\n"),
        ("    <FILL> = 1\n", "    @ = 1\n"),
        ("a = <FILL>; b = <FILL>\n", "a = @; b = @\n"),
        ("x = 1 # FILL", "x = 1 @"),
    ],
)
def test_a_marker_beside_other_text_is_the_rest_of_a_line(text: str, expected: str) -> None:
    holes = find("markers", "a.py", text)
    assert drawn(holes) == expected
    assert not any(hole.is_block for hole in holes)


@pytest.mark.parametrize(
    "text",
    ["# FILLER\n", "# FILL in\n", "# fill\n", "FILL = 1\n", "x = '# FILL'\n", "// FILL\n", "<fill>\n", "< FILL>\n"],
)
def test_what_only_looks_like_a_marker_is_none(text: str) -> None:
    assert find("markers", "a.py", text) == []


def test_comments_are_those_of_the_language() -> None:
    assert find("markers", "a.txt", "# FILL\n// FILL\n") == []
    assert len(find("markers", "a.js", "# FILL\n// FILL\n")) == 1


def test_own_markers_by_language_and_for_all() -> None:
    options = KindOptions(markers={"python": ("# TODO(midline)",), "*": ("???",), "go": ("ELSEWHERE",)}, max_tokens=7)
    text = "a\n    # TODO(midline)\nb = ??? + 1\nELSEWHERE\n<FILL>\n"
    holes = find("markers", "a.py", text, options)
    assert drawn(holes) == "a\n    @\nb = @ + 1\nELSEWHERE\n@\n"
    assert [hole.max_tokens for hole in holes] == [7, 7, 7]


def test_an_own_marker_is_no_part_of_a_word() -> None:
    options = KindOptions(markers={"*": ("HOLE",)})
    assert drawn(find("markers", "a.py", "HOLES = HOLE + A_HOLE\n", options)) == "HOLES = @ + A_HOLE\n"


def test_of_own_markers_the_longer_is_taken_and_empty_ones_are_none() -> None:
    options = KindOptions(markers={"*": ("", " ", "??", "????")})
    assert drawn(find("markers", "a.py", "x = ????\n", options)) == "x = @\n"
