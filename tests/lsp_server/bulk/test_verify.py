"""What goes into a hole of what a model says, and what is refused; holes as the kinds find them."""

import ast
import hashlib
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fim import FAMILIES
from lsp_server import bulk
from lsp_server.bulk import kinds
from lsp_server.bulk.holes import KINDS, Hole, KindOptions, SourceText
from lsp_server.bulk.verify import _CONTROL, Verdict, verify

assert kinds  # registers them

_SUFFIXES = {
    "python": "py",
    "javascript": "js",
    "typescript": "ts",
    "go": "go",
    "rust": "rs",
    "java": "java",
    "c": "c",
    "cpp": "cpp",
}


def _source(text: str, language: str = "python") -> SourceText:
    name = f"a.{_SUFFIXES.get(language, 'txt')}"
    return SourceText(Path("/w", name), name, language, text, hashlib.sha256(text.encode()).hexdigest(), 0, 0)


def _hole(text: str, kind: str = "markers", language: str = "python", options: KindOptions | None = None) -> Hole:
    """The first one of its kind."""
    return next(iter(KINDS[kind].find(_source(text, language), options or KindOptions())))


def _good(hole: Hole, raw: str, fill: str) -> None:
    assert verify(hole, raw) == Verdict(fill)


def _bad(hole: Hole, raw: str, reason: str) -> None:
    assert verify(hole, raw).reason == reason


# ---- fitting


@pytest.mark.parametrize(
    ("text", "raw", "fill"),
    [
        ("x = <FILL>\ny = 2\n", "1", "1"),
        ("x = <FILL>\ny = 2\n", "1\ny = 2\nz = 3", "1"),  # a line ends with its line
        ("x = <FILL>\r\n", "1\r\ny", "1"),
        ("f(<FILL>)\n", "a, b)", "a, b"),  # what stands behind is not closed twice
        ("f(<FILL>) + 1\n", "a) + 1", "a"),
        ("f(<FILL>)\n", "a) + g(b", "a"),
        ("f(<FILL>)\n", "':)'", "':)'"),
        ("f('<FILL>')\n", "b')", "b"),
        ("f('<FILL>')\n", "b' + 'c", "b' + 'c"),
        ("y = <FILL> + 1\n", "x + 1", "x"),
        ("x = <FILL>\n", "a)", "a"),
        ("def f(): return {<FILL> }\n", "1: 2 }", "1: 2"),
        ("def f():\n    <FILL>\n", "return 1  \n", "return 1"),
        ("def f():\n    <FILL>\n", "\n    return 1\n", "return 1"),  # blank lines and indentation are there already
        ("def f():\n    <FILL>\n", "    return 1\n", "return 1"),
        ("def f():\n    <FILL>\n", "a = 1\n\n    return a\n\n\ndef g():\n    pass", "a = 1\n\n    return a"),
        ("def f():\n    <FILL>\n", "if a:\r\n        b\r\n    return 1\r\n", "if a:\n        b\n    return 1"),
        ("def f(a):\n    <FILL>\n    return a\n\nx = f(1)\n", "a += 1\n    return a\n\nx = f(1)", "a += 1"),
        ("# <FILL>\nimport os\n", "import re\nimport os\n", "import re"),
    ],
)
def test_markers_in_python(text: str, raw: str, fill: str) -> None:
    _good(_hole(text.replace("\r\n", "\n")), raw, fill)


_STUBS = {
    "python": ("def f(a):\n    pass\n\n\nx = 1\n", "return a\n\n\ndef g():\n    return 2\n", "return a"),
    "javascript": (
        "function f(a) {\n  throw new Error('not implemented');\n}\n\nf(1);\n",
        "return a;\n}\n\nfunction g() {\n  return 2;\n}",
        "return a;",
    ),
    "typescript": (
        "function f(a: number): number { throw new Error('not implemented'); }\n",
        "return a;\n}\n\nfunction g() {\n  return 2;\n}",
        "return a;",
    ),
    "go": ('package p\n\nfunc f(a int) int {\n\tpanic("TODO")\n}\n', "return a\n}\n\nfunc g() {\n}", "return a"),
    "rust": (
        "fn f(a: i32) -> i32 {\n    todo!()\n}\n",
        "if a > 1 {\n        2\n    } else {\n        a\n    }\n}\n",
        None,
    ),
    "java": (
        'class A {\n    int f(int a) {\n        throw new UnsupportedOperationException("TODO");\n    }\n}\n',
        "return a;\n    }\n\n    int g() {\n        return 1;\n    }\n}",
        "return a;",
    ),
    "c": (
        "int f(int a) {\n    // TODO\n    return 0;\n}\n",
        "return a;\n}\n\nint main() {\n    return 0;\n}",
        "return a;",
    ),
    "cpp": ('int f(int a) {\n    throw std::logic_error("not implemented");\n}\n', "return a;\n}\n", "return a;"),
}


@pytest.mark.parametrize("language", _STUBS)
def test_stubs_end_with_their_function(language: str) -> None:
    text, raw, fill = _STUBS[language]
    hole = _hole(text, "stubs", language)
    _good(hole, raw, raw.removesuffix("\n}\n") if fill is None else fill)


@pytest.mark.parametrize("language", _STUBS)
def test_stubs_that_stay_stubs(language: str) -> None:
    hole = _hole(_STUBS[language][0], "stubs", language)
    replaced = hole.source.text[hole.start : hole.end].strip()
    others = {
        "python": ["...", "raise NotImplementedError", "raise NotImplementedError()"],
        "rust": ["todo!()", 'unimplemented!("later")'],
        "go": ['panic("not implemented")'],
    }
    for raw in [replaced, *others.get(language, [])]:
        _bad(hole, raw, "it is still a stub")


_UNWRITTEN = {
    "python": (
        "def f(a):\n    <FILL>\n",
        ["pass", "...", "raise NotImplementedError", '"""Does it."""', "# TODO\n    pass", "pass  # soon"],
    ),
    "javascript": ("function f(a) {\n  <FILL>\n}\n", ['throw new Error("not implemented");', "// TODO"]),
    "typescript": ("class A {\n  f(): number {\n    <FILL>\n  }\n}\n", ['throw new Error("Not implemented");']),
    "go": ("package p\n\nfunc f() int {\n\t<FILL>\n}\n", ['panic("TODO")']),
    "rust": ("fn f() -> i32 {\n    <FILL>\n}\n", ["todo!()", 'unimplemented!("later")']),
    "java": (
        "class A {\n    int f() {\n        <FILL>\n    }\n}\n",
        ['throw new UnsupportedOperationException("not implemented");'],
    ),
    "c": ("int f() {\n    <FILL>\n}\n", ["// TODO\n    return 0;"]),
    "cpp": ("int f() {\n    <FILL>\n}\n", ['throw std::logic_error("not implemented");']),
}


@pytest.mark.parametrize("language", _UNWRITTEN)
def test_no_kind_of_hole_is_filled_with_a_stub(language: str) -> None:
    text, raws = _UNWRITTEN[language]
    marker = _hole(text, language=language)
    cursor = Hole(_source(text.replace("<FILL>", ""), language), "cursors", marker.start, marker.start, is_block=True)
    for raw in raws:
        _bad(marker, raw, "it is still a stub")
        _bad(cursor, raw, "it is still a stub")


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("import abc\nclass A:\n    @abc.abstractmethod\n    def f(self):\n        <FILL>\n", "..."),
        ("from typing import overload\n@overload\ndef f(a: int) -> int:\n    <FILL>\n", "..."),
        ("class A(Protocol):\n    def f(self):\n        <FILL>\n", "..."),
        ("class A:\n    <FILL>\n", "@abc.abstractmethod\n    def f(self):\n        ..."),
        ("class A:\n    <FILL>\n", "pass"),  # no function
        ("class A:\n    <FILL>\n", "x: int = 1\n\n    def f(self):\n        pass"),  # more than the stub
        ("def f():\n    raise NotImplementedError(<FILL>)\n", "'later'"),  # it was one before
        ("def f(<FILL>):\n    pass\n", "a, b"),
        ("def f():\n    pass\n\n\nx = <FILL>\n\n\ndef g():\n    pass\n", "1"),
        ("def f(a):\n    if a:\n        <FILL>\n    return a\n", "pass"),
        ("def f(a):\n    <FILL>\n", "def noop():\n        pass\n    return noop"),
        ("def f(a):\n    # nothing to do\n    <FILL>\n", "pass"),
        ("def f(a):\n    return <FILL>\n", "..."),
    ],
)
def test_what_only_looks_like_a_stub_is_good(text: str, raw: str) -> None:
    _good(_hole(text), raw, raw)


def test_a_fill_that_is_a_stub_as_a_whole() -> None:
    _bad(_hole("class A:\n    <FILL>\n"), "def f(self):\n        pass", "it is still a stub")
    _bad(_hole("class A:\n    <FILL>\n"), "@cache\n    def f(self):\n        ...", "it is still a stub")
    exported = _hole("<FILL>\n", language="javascript")
    _bad(exported, "export function f() {\n  throw new Error('TODO');\n}", "it is still a stub")


def test_empty_functions_inside_a_body_are_no_stubs() -> None:
    hole = _hole("def f(a):\n    pass\n", "stubs")
    raw = "def noop():\n        pass\n    return a or noop"
    _good(hole, raw, raw)
    script = _hole(_STUBS["javascript"][0], "stubs", "javascript")
    _good(script, "function noop() {}\n  return a || noop;", "function noop() {}\n  return a || noop;")


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_preprocessor_lines_are_inside_a_block(language: str) -> None:
    hole = _hole(_STUBS[language][0], "stubs", language)
    body = "#ifdef DEBUG\n    log(a);\n#else\n    trace(a);\n#endif\n    return a;"
    _good(hole, f"check(a);\n{body}\n}}\n\nint g() {{\n    return 2;\n}}\n#endif\n", f"check(a);\n{body}")
    for end in ("endif", "else", "elif B"):
        inside = _hole(f"int f() {{\n#if A\n    <FILL>\n#{end}\n    b();\n#endif\n}}\n", language=language)
        _good(inside, f"{body}\n#{end}\n    c();\n}}\n", body)


@pytest.mark.parametrize(
    ("text", "language", "raw", "fill"),
    [
        (
            "def f():\n    <FILL>\n",
            "python",
            'page = """\n<p>it\'s\n"""\n    return page\n\n\ndef g():\n    return ""\n',
            'page = """\n<p>it\'s\n"""\n    return page',
        ),
        (
            "function f(a) {\n  <FILL>\n}\n",
            "javascript",
            "return `\n<p>${a}\n`;\n}\n\nfunction g() {\n  return `b`;\n}\n",
            "return `\n<p>${a}\n`;",
        ),
        ("func f() {\n\t<FILL>\n}\n", "go", "x := `\nselect\n`\n\tg(x)\n}\n\nvar y = 1\n", "x := `\nselect\n`\n\tg(x)"),
        ("fn f() {\n    <FILL>\n}\n", "rust", 'g(r#"\n<a b="c">\n"#);\n}\nfn h() {}\n', 'g(r#"\n<a b="c">\n"#);'),
        # from inside a string, the next quotes end one
        ('x = f("""\n    <FILL>\n    """)\n', "python", 'a\nb\n""")\nc\n', "a"),
        (
            "int f(int a) {\n    <FILL>\n}\n",
            "c",
            "if (a)\n        goto out;\n    a = 1;\nout:\n    return a;\n}\n",
            None,
        ),
        (
            "int f(int a) {\n    <FILL>\n}\n",
            "cpp",
            "if (a)\n        goto out;\n    a = 1;\nout:\n    return a;\n}\n",
            None,
        ),
        ("func f() {\n\t<FILL>\n}\n", "go", "g()\nout:\n\tfor {\n\t\tbreak out\n\t}\n}\n", None),
        (
            "int f(int a) {\n    if (a) {\n        <FILL>\n    }\nout:\n    return a;\n}\n",
            "c",
            "a = 1;\nout:\n    b();\n",
            "a = 1;",
        ),
    ],
)
def test_what_may_stand_in_the_first_column_ends_no_fill(text: str, language: str, raw: str, fill: str | None) -> None:
    _good(_hole(text, language=language), raw, raw.removesuffix("\n}\n") if fill is None else fill)


def test_documentation_of_a_stub_is_none() -> None:
    _good(_hole("def f(a):\n    pass\n", "docstrings"), 'What f does."""', "What f does.")


def test_a_docstring_that_is_said_again_is_left_out() -> None:
    raw = '"""Does  it.\n\n    Well."""\n    return a'
    for kind, body in (("stubs", "raise NotImplementedError"), ("markers", "<FILL>"), ("markers", "# FILL")):
        for above in ('"""Does it.\n\n    Well.\n    """', '"""Does it.\n\n    Well."""'):
            hole = _hole(f"def f(a):  # why\n    {above}\n    {body}\n", kind)
            _good(hole, raw, "return a")
            _good(hole, "\n    r" + raw, "return a")
            _good(hole, raw.replace("it", "this"), raw.replace("it", "this"))
            _bad(hole, '"""Does it. Well."""', "the model said nothing")
    one_line = _hole("def f(a): 'Does it.'\n", "stubs")
    _good(one_line, "'Does it.'\n    return a", "return a")
    _good(_hole('x = (\n    "-"\n    <FILL>\n)\n'), '"-"', '"-"')  # no docstring
    _good(_hole('def f(a):\n    """A."""\n    a += 1\n    <FILL>\n'), '"""A."""', '"""A."""')


def test_a_function_on_one_line_ends_where_its_bracket_closes() -> None:
    """Also where the model goes on so that all brackets match again; but a bracket may belong to a string."""
    hole = Hole(_source("function f() { X }\n", "javascript"), "k", 15, 16, is_block=True)
    _good(hole, "return 1; } function g() { return 2;", "return 1;")
    _good(hole, "return 1; }", "return 1;")
    _good(hole, "return '}';", "return '}';")
    _good(hole, "return g({a: [1]});", "return g({a: [1]});")


def test_docstrings() -> None:
    hole = _hole("def f(a):\n    return a\n", "docstrings")
    _good(hole, "What f does: (a) :-)", "What f does: (a) :-)")
    _good(hole, 'Title.\n\n    More.\n    """\n    return a', "Title.\n\n    More.\n    ")
    _good(hole, 'Title """\n', "Title")  # nobody puts spaces in front of the quotes
    _good(hole, 'He said "yes" """\n', 'He said "yes" ')  # unless they are needed
    _good(hole, 'Title.\n\n    More. \t"""', "Title.\n\n    More.")
    _good(hole, 'He said "yes" to it', 'He said "yes" to it')
    _bad(hole, 'He said "yes"', "it breaks the file's syntax")
    above = _hole("package p\n\nfunc Run() {}\n", "docstrings", "go")
    _good(above, "runs it.\n// Really.", "runs it.")


def _functions() -> list[tuple[str, int, int, int]]:
    """Of this package: the text of a file, a function's body in it, and its indentation."""
    found = []
    for path in sorted(Path(bulk.__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first, last = node.body[0], node.body[-1]
                start, end = starts[first.lineno - 1] + first.col_offset, starts[last.end_lineno or 0] - 1
                found.append((text, start, end, first.col_offset))
    return found


def test_what_people_wrote_is_good_and_ends_where_it_ended() -> None:
    functions = _functions()
    assert len(functions) > 50
    for text, start, end, indent in functions:
        body = text[start:end]
        stub = Hole(_source(f"{text[:start]}pass{text[end:]}"), "stubs", start, start + 4, True, indent)
        _good(stub, f"{body}\n\n\ndef another() -> None:\n    return 1\n", body)


# ---- refusing


@pytest.mark.parametrize("raw", ["", "  \n\n", "\n"])
def test_nothing(raw: str) -> None:
    _bad(_hole("def f():\n    <FILL>\n"), raw, "the model said nothing")
    _bad(_hole("x = <FILL>\n"), raw, "the model said nothing")


@pytest.mark.parametrize(
    ("text", "language", "raw", "fill"),
    [
        (
            "def f():\n    <FILL>\n",
            "python",
            'a = 1  \n    b = """  \n    é  \n    """  \n    return b  \n',
            'a = 1\n    b = """  \n    é  \n    """\n    return b',
        ),
        ("é = 1\nx = '''\n<FILL>\n'''\n", "python", "a  ", "a"),
        ("function f() {\n  <FILL>\n}\n", "javascript", "return `  \n  a \n  `; \n", "return `  \n  a \n  `;"),
        ("func f() {\n\t<FILL>\n}\n", "go", "x := `a \n\t\tb`  \n\tg(x)", "x := `a \n\t\tb`\n\tg(x)"),
    ],
)
def test_spaces_at_line_ends_stay_where_they_are_part_of_a_string(
    text: str, language: str, raw: str, fill: str
) -> None:
    _good(_hole(text, language=language), raw, fill)


def test_a_string_is_indented_as_it_likes() -> None:
    hole = _hole("func f() {\n\t<FILL>\n}\n\nfunc g() {\n\th()\n}\n", language="go")
    fill = "h(`\n    select 1\n    `)"
    _good(hole, fill, fill)
    _bad(hole, f"{fill}\n    h()", "it is indented with spaces, but the file with tabs")
    _bad(hole, "if x {\n        h()\n    }", "it is indented with spaces, but the file with tabs")


def test_a_docstring_is_indented_as_its_file() -> None:
    hole = _hole("def f(a):\n\treturn a\n", "docstrings")
    _bad(hole, "Say a.\n\n    More.", "it is indented with spaces, but the file with tabs")


def test_spaces_at_line_ends_of_a_docstring_go() -> None:
    hole = _hole("def f(a):\n    return a\n", "docstrings")
    assert "More.\n" in verify(hole, "Say a.  \n\n    More.  \n    It is a.").text


def test_what_follows_already() -> None:
    _bad(_hole("def f(a):\n    <FILL>\n    return a\n"), "return a\n", "it only repeats what follows")
    _bad(_hole("f(a<FILL>)\n"), ")", "it only repeats what follows")
    _bad(_hole("x = <FILL>\n"), ")(", "it breaks the file's syntax")


def test_circles() -> None:
    hole = _hole("def f():\n    <FILL>\n")
    _bad(hole, "a = 1\n    a = 1\n    a = 1\n    a = 1", "it repeats itself")
    _bad(hole, "x = [" + "'ab', " * 20, "it repeats itself")
    _good(hole, "a = 1\n    b = 1\n    a = 1", "a = 1\n    b = 1\n    a = 1")


@pytest.mark.parametrize("token", ["<|fim_middle|>", "<|endoftext|>", "<fim_suffix>", "<｜fim▁end｜>", "<|file_sep|>"])
def test_control_tokens(token: str) -> None:
    reason = "it contains a control token of the model"
    _bad(_hole("x = <FILL>\n"), f"'{token}'", reason)
    _good(_hole(f"y = '{token}'\nx = <FILL>\n"), f"'{token}'", f"'{token}'")  # a file may speak of it
    _bad(_hole(f"y = '{token}'\nx = <FILL>\n"), f"'{token}<|im_end|>'", reason)


def test_all_markers_of_all_families_are_control_tokens() -> None:
    markers = {marker.lstrip("▁") for family in FAMILIES for marker in family.markers}
    assert len(markers) > 10
    assert {marker for marker in markers if not _CONTROL.fullmatch(marker)} == set()
    for code in ("a<b>c", "List<Prefix>", "a <| b |> c", "x[PREFIX_LEN]", "<pre>", "<fim>", "a|>b", "<||>"):
        assert not _CONTROL.search(code), code


@pytest.mark.parametrize("raw", ["'\0'", "'\x1b[0m'", "'\ufffd'", "'\ud800'"])
def test_characters_that_are_no_text(raw: str) -> None:
    _bad(_hole("x = <FILL>\n"), raw, "it contains characters that are no text")


def test_markers_that_are_left() -> None:
    _bad(_hole("x = <FILL>\n"), "'<FILL>'", "it is still a marker")
    _bad(_hole("x = <FILL>\n"), "[<FILL>]", "it breaks the file's syntax")
    _bad(_hole("def f():\n    # FILL\n"), "a = 1\n    # FILL\n    return a", "it is still a marker")
    own = _hole("x = ???\n", options=KindOptions(markers={"python": ("???",)}))
    _bad(own, "1  # ???", "it is still a marker")
    _good(_hole("x = <FILL>\ny = <FILL>\n"), "1", "1")  # the other one's is not this one's


def test_indentation() -> None:
    spaces = "if a:\n    b()\ndef f():\n    <FILL>\n"
    _bad(_hole(spaces), "if a:\n\t\treturn 1", "it is indented with tabs, but the file with spaces")
    tabs_js = _hole("if (a) {\n\tb();\n}\nfunction f() {\n\t<FILL>\n}\n", language="javascript")
    _bad(tabs_js, "if (a) {\n    return 1;\n    }", "it is indented with spaces, but the file with tabs")
    _good(tabs_js, "/*\n\t * a\n\t */\n\treturn 1;", "/*\n\t * a\n\t */\n\treturn 1;")
    _good(_hole("/**\n * a\n */\n<FILL>\n", language="javascript"), "b();\n/**\n * c\n */", "b();\n/**\n * c\n */")
    column_0 = Hole(_source("def f():\n\n"), "cursors", 9, 9, is_block=True, min_indent=1)
    _bad(column_0, "return 1", "it is indented less than its block")
    _good(column_0, "\n    return 1\n", "    return 1")
    _good(Hole(_source("x = 1\n", ""), "k", 0, 0, is_block=True), "a\n\tb", "a\n\tb")  # nothing to agree with
    _good(Hole(_source("x\n\ta\n  b\n", ""), "k", 0, 0, is_block=True), "c\n\td", "c\n\td")  # both are there


@pytest.mark.parametrize(
    ("language", "text", "raw"),
    [
        ("python", "x = <FILL>\n", "(1"),
        ("python", "x = <FILL>\n", "1 +"),
        ("python", "def f():\n    <FILL>\n", "if a:\n        b\n      c"),  # the grammar alone forgives these two
        ("python", "def f():\n    <FILL>\n", "a = 1\n        b = 2"),
        ("javascript", "let x = <FILL>;\n", "f(1"),
        ("typescript", "let x: number = <FILL>;\n", "[1, "),
        ("go", "package p\n\nfunc f() int {\n\t<FILL>\n}\n", "return 1 +"),
        ("rust", "fn f() -> i32 {\n    <FILL>\n}\n", "if a { 1"),
        ("java", "class A {\n    int f() {\n        <FILL>\n    }\n}\n", "return (1;"),
        ("c", "int f() {\n    <FILL>\n}\n", 'return "a;'),
        ("cpp", "int f() {\n    <FILL>\n}\n", "std::vector<int v;"),
    ],
)
def test_syntax(language: str, text: str, raw: str) -> None:
    _bad(_hole(text, language=language), raw, "it breaks the file's syntax")


def test_errors_that_were_there_do_not_count() -> None:
    _good(_hole("def broken(:\n\nx = <FILL>\n"), "1", "1")
    _bad(_hole("def broken(:\n\nx = <FILL>\n"), "(1", "it breaks the file's syntax")
    _good(_hole(f"y = {'-' * 100_000}1\nx = <FILL>\n"), "1", "1")  # more than Python can take
    _good(_hole("print 'old'\nx = <FILL>\n"), "1", "1")  # no Python of today
    _good(_hole("function f( {\n}\nlet x = <FILL>;\n", language="javascript"), "1", "1")


def test_without_a_grammar_text_is_text() -> None:
    hole = Hole(_source("a (\n?\n", "lua"), "k", 4, 5)
    _good(hole, "b", "b")


def test_a_warning_about_the_code_is_none_of_ours() -> None:
    _good(_hole("x = <FILL>\n"), r"'\d'", r"'\d'")
    _good(_hole("x = <FILL>\n"), "1 is 1", "1 is 1")


_RAW = st.text(st.sampled_from([*"ab01 \t\n\r\"'(){}[]:;.,<>|\\#/*\0\ud800", "ä", "\u2028"]), max_size=40)
_TEXTS = {
    "python": "class A:\n    def f(self):\n        <FILL>\n\n    def g(self): pass\n",
    "javascript": "function f() {\n  <FILL>\n}\nlet x = 1;\n",
    "": "one\n<FILL>\ntwo\n",
}


@settings(max_examples=200, derandomize=True, deadline=None)
@given(raw=_RAW, language=st.sampled_from(list(_TEXTS)), is_block=st.booleans())
def test_whatever_is_said_is_judged(raw: str, language: str, is_block: bool) -> None:
    """And a good fill is text of the model, in one line where one is wanted, and good when it is said again."""
    text = _TEXTS[language]
    start = text.index("<FILL>")
    hole = Hole(
        _source(text, language), "markers", start, start + 6, is_block=is_block, min_indent=2 if is_block else 0
    )
    verdict = verify(hole, raw)
    assert "\n" not in verdict.reason
    if not verdict.reason:
        assert verdict.text.strip()
        assert "\r" not in verdict.text
        assert is_block or "\n" not in verdict.text
        assert verify(hole, verdict.text) == verdict


@pytest.mark.parametrize(
    ("language", "text", "raw"),
    [
        ("python", "def f(a):\n    pass\n", "# Twice.\n    # Or thrice.\n"),
        ("javascript", 'function f(a) {\n  throw new Error("not implemented");\n}\n', "// Twice.\n"),
    ],
)
def test_a_comment_alone_is_no_body(language: str, text: str, raw: str) -> None:
    hole = _hole(text, "stubs", language)
    reason = verify(hole, raw).reason
    assert reason in ("it is only a comment", "it is still a stub", "it breaks the file's syntax")
    assert verify(hole, raw + "  return a;\n" if language != "python" else raw + "    return a\n").reason == ""
