import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsp_server.bulk.grammars import (
    LANGUAGES,
    Syntax,
    language_named,
    language_of,
    multiline_strings,
    num_errors,
    parse,
)
from lsp_server.errors import UsageError

WITH_GRAMMAR = [name for name, language in LANGUAGES.items() if language.grammar]


def test_the_languages_that_are_promised_have_a_grammar() -> None:
    assert {"python", "javascript", "typescript", "tsx", "go", "rust", "java", "c", "cpp"} <= set(WITH_GRAMMAR)


@pytest.mark.parametrize(
    ("name", "text", "language"),
    [
        ("a.py", "", "python"),
        ("a.pyi", "", "python"),
        ("A.PY", "", "python"),
        ("a.mjs", "", "javascript"),
        ("a.jsx", "", "javascript"),
        ("a.ts", "", "typescript"),
        ("a.tsx", "", "tsx"),
        ("a.h", "int f(void);\n", "c"),
        ("a.h", "namespace a {}\n", "cpp"),
        ("a.h", "#include <x>\nstd::string f();\n", "cpp"),
        ("Makefile", "", "make"),
        ("run", "#!/usr/bin/env -S python3.11 -u\n", "python"),
        ("run", "#! /usr/bin/python\n", "python"),
        ("run", "#!/bin/sh\n", "shell"),
        ("run", "#!/usr/bin/env A=1 node\n", "javascript"),
        ("run", "#!/usr/bin/env\n", ""),
        ("run", "#!\n", ""),
        ("run.txt", "#!/bin/sh\n", ""),
        ("run", "x\n#!/bin/sh\n", ""),
        ("a.unknown", "", ""),
    ],
)
def test_a_language_is_known_by_name_or_by_the_first_line(name: str, text: str, language: str) -> None:
    assert language_of(PurePath(name), text) == language


def test_people_may_use_other_names() -> None:
    assert [language_named(name).name for name in ("python", "C++", "js", "golang", "TS")] == [
        "python",
        "cpp",
        "javascript",
        "go",
        "typescript",
    ]
    with pytest.raises(UsageError, match=r"unknown language 'cobol'; known are python, .*rust"):
        language_named("cobol")


_WRONG = {
    "python": "def f(:\n    pass\n",
    "javascript": "function f( {\n",
    "typescript": "let x: = 1;\n",
    "tsx": "const a = <b;\n",
    "go": "package a\nfunc f( {\n",
    "rust": "fn f( -> {}\n",
    "java": "class A { int f( }\n",
    "c": "int f( {\n",
    "cpp": "class A { int f( };\n",
}


@pytest.mark.parametrize("language", WITH_GRAMMAR)
def test_errors_are_counted(language: str) -> None:
    assert num_errors(language, "") == 0
    once = num_errors(language, _WRONG[language])
    assert once is not None
    assert once >= 1


def test_each_place_counts_and_missing_tokens_too() -> None:
    assert num_errors("python", "x = )\ny = 1\nz = )\n") == 2
    assert num_errors("c", "int x\n") == 1


def test_without_a_grammar_there_is_nothing_to_count() -> None:
    assert num_errors("ruby", "def") is None
    assert num_errors("", "def") is None
    assert parse("cobol", "") is None


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.sampled_from(WITH_GRAMMAR), st.text(st.characters(exclude_categories=[]), max_size=60))
def test_any_text_can_be_counted(language: str, text: str) -> None:
    assert (num_errors(language, text) or 0) >= 0


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.text(max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_bytes_become_characters_in_any_order(text: str, indices: list[int]) -> None:
    syntax = Syntax("python", text)
    for index in indices:
        prefix = text[:index]
        assert syntax.offset(len(prefix.encode())) == len(prefix)


def test_deep_and_long_texts_are_counted() -> None:
    assert (num_errors("javascript", "(" * 50_000) or 0) > 0
    assert num_errors("python", "x = 1\n" * 20_000) == 0


def test_the_kinds_ask_for_one_text_and_get_one_tree() -> None:
    text = "def f(): pass\n"
    first = parse("python", text)
    assert parse("python", text) is first
    assert parse("python", text + "x") is not first


def test_threads_do_not_share_parsers() -> None:
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda number: num_errors("python", f"x = {number}\n" * 200), range(200)))
    assert set(counts) == {0}


def test_grammars_are_loaded_when_needed() -> None:
    script = "import sys, lsp_server.bulk.select; sys.exit(any(n.startswith('tree_sitter_') for n in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("language", "text", "strings"),
    [
        ("python", 'é = f("""\na {b\n+ 1} \n""" "x"\n "y")\n', ['"""\na {b\n+ 1} \n"""']),
        ("python", "x = ('a'\n'b') # '''\ny = r'''\n'''\nz = '''\n'''", ["r'''\n'''", "'''\n'''"]),
        ("javascript", "f(`a\n${ b } `, `c`);\n", ["`a\n${ b } `"]),
        ("typescript", "f(`a\n`);\n", ["`a\n`"]),
        ("tsx", "x = <a>b\n c</a>; y = `\n`\n", ["`\n`"]),
        ("go", "package a\nvar x = `a\n`\n", ["`a\n`"]),
        ("rust", 'fn f() { a("b\n"); c(r#"d\n"#) }\n', ['"b\n"', 'r#"d\n"#']),
        ("java", 'class A { String a = """\n  b\n """; }\n', ['"""\n  b\n """']),
        ("cpp", 'auto a = R"(b\n)"; auto c = "d"\n "e";\n', ['R"(b\n)"']),
        ("lua", "x = [[\n]]\n", []),
        ("", "", []),
    ],
)
def test_strings_that_go_over_lines(language: str, text: str, strings: list[str]) -> None:
    assert [text[start:end] for start, end in multiline_strings(language, text)] == strings
