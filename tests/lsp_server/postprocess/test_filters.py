"""Each filter by a table of cases: the cursor drawn in the text, what was generated, what is left."""

import pytest

from lsp_server.postprocess import block_end
from lsp_server.postprocess.blank import drop_blank
from lsp_server.postprocess.block import limit_block
from lsp_server.postprocess.duplicate import cut_duplicate
from lsp_server.postprocess.overlap import closing_overlay, trim_overlap
from lsp_server.postprocess.repetition import cut_repetition
from lsp_server.postprocess.single_line import cut_to_line
from lsp_server.postprocess.trailing import trim_trailing
from tests.support.cursor import hole


@pytest.mark.parametrize(
    ("drawn", "text", "left"),
    [
        ("x = ║", "1\ny = 2", "1"),
        ("x = ║", "\ny = 2", ""),
        ("def f():\n    ║", "a\nb", "a\nb"),
    ],
)
def test_cut_to_line(drawn: str, text: str, left: str) -> None:
    assert cut_to_line(text, hole(drawn)) == left


@pytest.mark.parametrize(
    ("drawn", "text", "left"),
    [
        # dedent ends it
        ("def f():\n    ║\n", "a = 1\n    return a\n\nprint(f())", "a = 1\n    return a\n"),
        ("def f():║\n", "\n    return 1\nprint()", "\n    return 1"),
        ("class A:\n    def f(self):║\n", "\n        pass\n\n    def g(self):", "\n        pass\n"),
        # deeper lines belong to it, and one back at its own indentation
        ("def f(x):\n    ║\n", "if x:\n        y()\n    z()\nw()", "if x:\n        y()\n    z()"),
        # a blank line's block is one paragraph
        ("def f():\n    ║\n", "a\n    b\n\n    c", "a\n    b\n"),
        ("import os\n\n║\n", "def f():\n    pass\n\n\ndef g():\n    pass", "def f():\n    pass\n\n"),
        ("import os\n\n║\n", "def f():\n    a\n\n    b\n\nc", "def f():\n    a\n\n    b\n"),
        # an opener's block may have several
        ("def f():║\n", "\n    a\n\n    b\nc", "\n    a\n\n    b"),
        # cursor in column 0 below an opener: only deeper lines
        ("def f():\n║\n", "return 1", ""),
        ("def f():\n║\n", "    return 1\nx", "    return 1"),
        # the block brings its closing bracket unless the file has it
        ("if (x) {║\n", "\n  y();\n}\nz();", "\n  y();\n}"),
        ("if (x) {║\n}\n", "\n  y();\n}\nz();", "\n  y();"),
        ("const a = {║\n", "\n  b: 1,\n};\nc", "\n  b: 1,\n};"),
        ("if (x) {║\n", "\n  y();\n} else {\n  z();", "\n  y();"),
        # tabs
        ("func f() {\n\t║\n}", "a()\n\tb()\n}\n", "a()\n\tb()"),
        # nothing to cut, single lines untouched
        ("def f():\n    ║\n", "return 1", "return 1"),
        ("x = ║", "1\ny", "1\ny"),
    ],
)
def test_limit_block(drawn: str, text: str, left: str) -> None:
    assert limit_block(text, hole(drawn)) == left


def test_block_end_is_seen_as_soon_as_it_is_certain_and_never_before() -> None:
    place, text = hole("if (x) {║\n"), "\n  y();\n}\nz();"
    ends = [block_end(text[:length], place) for length in range(len(text) + 1)]
    certain_from = len("\n  y();\n}\n")
    assert ends == [None] * certain_from + [certain_from - 1] * (len(text) + 1 - certain_from)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\na\na\nb", "a"),
        ("x\n  a\n  a\n  a", "x\n  a"),
        ("a\na\nb", "a\na\nb"),
        ("a\n  a\n    a", "a\n  a\n    a"),
        ("\n\n\na", "\n\n\na"),
        ("[0, 0, 0, 0, 0, 0, 0]", "[0, 0, 0, 0, 0, 0, 0]"),
        ("x = " + "a.b" * 20, ""),
        ("ok\nx = " + "abcdefgh " * 5, "ok"),
        (" " * 90, " " * 90),
    ],
)
def test_cut_repetition(text: str, left: str) -> None:
    assert cut_repetition(text, hole("def f():\n    ║")) == left


@pytest.mark.parametrize(
    ("drawn", "text", "left"),
    [
        ("a\n║\nreturn x\n", "return x", ""),
        ("a\n    ║\n    return x\n", "return x", ""),
        ("ret║\nreturn x\n", "urn x", ""),
        ("a\n║\n\n\nb\nc\nd\n", "b\nc\nd\ne", ""),
        ("a\n║\nb\nc\n", "x\nb\nc", "x"),
        ("a\n║\nb\n", "x\nb", "x"),
        ("a\n║\nb\nc\n", "b\nx", "b\nx"),
        ("f(║\n)\n", ")", ")"),
        ("if x {\n  ║\n}\n", "y\n}", "y\n}"),
        ("a\n║\n", "b", "b"),
    ],
)
def test_cut_duplicate(drawn: str, text: str, left: str) -> None:
    assert cut_duplicate(text, hole(drawn)) == left


@pytest.mark.parametrize(
    ("drawn", "text", "left"),
    [
        ("x = ║", "1  \n\n", "1"),
        ("def f():║", " \n    a \n\t\n    b", "\n    a\n\n    b"),
        ("f(║)", "a, ", "a, "),
        ("f(║)", "a,\n", "a,"),
    ],
)
def test_trim_trailing(drawn: str, text: str, left: str) -> None:
    assert trim_trailing(text, hole(drawn)) == left


@pytest.mark.parametrize(("text", "left"), [(" \t", ""), ("x", "x")])
def test_drop_blank(text: str, left: str) -> None:
    assert drop_blank(text, hole("║")) == left


@pytest.mark.parametrize(
    ("drawn", "text", "inserted", "overlay"),
    [
        ("print(║)", "a, b)", "a, b", None),
        ("print(║)", "foo(a)", "foo(a)", None),
        ("print(║)", "foo(a))", "foo(a)", None),
        ("print(║)", "a", "a", None),
        ("print(║)", ")", "", None),
        ("if f(║):", "a):", "a", None),
        ("if f(║)", "a):", "a", "a):"),
        ("f(g(║))", "x)", "x", None),
        ("f(g(║))", "x);", "x", None),
        ("f(g(║))", "x));", "x", "x));"),
        ("a[║]", "i] = 0", "i", "i] = 0"),
        ('print("║")', 'hi")', "hi", None),
        ('print("║")', "hi", "hi", None),
        ("let x = ║;", "1;", "1", None),
        ("x = ║ + y", "a + y", "a", None),
        ("x = ║ + y", "a", "a", None),
        ("x = ║", "1)", "1)", None),
    ],
)
def test_overlap_with_the_rest_of_the_line(drawn: str, text: str, inserted: str, overlay: str | None) -> None:
    place = hole(drawn)
    assert trim_overlap(text, place) == inserted
    found = closing_overlay(text, place)
    assert (found.text if found else None) == overlay
    if found:
        assert found.num_replaced_chars == len(place.situation.line_suffix)
