"""What the model sees of other files, by what a file imports and what lies beside it."""

from pathlib import Path

import pytest

from lsp_server.bulk.context import RepositoryContext, imports_of, outline
from lsp_server.bulk.holes import SourceText
from tests.support.bulk_holes import source_with


def _context(sources: list[SourceText], max_chars: int = 10_000) -> RepositoryContext:
    by_path = {source.path: source for source in sources}
    return RepositoryContext({source.relative: source.path for source in sources}, by_path.get, max_chars)


def _shown(tmp_path: Path, files: dict[str, str], relative: str, max_chars: int = 10_000) -> list[str]:
    sources = [source_with(tmp_path, name, text) for name, text in files.items()]
    (asked,) = (source for source in sources if source.relative == relative)
    return [file.path for file in _context(sources, max_chars).files_for(asked)]


@pytest.mark.parametrize(
    ("relative", "text", "files"),
    [
        ("pkg/a.py", "from pkg.b import x\nimport os, pkg.c as c\n", ["pkg/b.py", "pkg/c.py"]),
        ("pkg/sub/a.py", "from ..b import x\nfrom . import d\n", ["pkg/b.py", "pkg/sub/d.py"]),
        ("src/pkg/a.py", "from pkg.b import (\n    x,\n    y as z,\n)\n", ["src/pkg/b.py"]),
        ("a.py", "from pkg import b, none  # so\n", ["pkg/__init__.py", "pkg/b.py"]),
        ("web/a.ts", "import { x } from './b'\nimport y from '../lib/c.js'\n", ["web/b.tsx", "lib/c.js"]),
        ("web/a.js", 'const x = require("./lib")\nimport react from "react"\n', ["web/lib/index.js"]),
        ("src/a.c", '#include <stdio.h>\n#include "b.h"\n#  include "util/c.h"\n', ["src/b.h", "util/c.h"]),
        ("src/org/x/A.java", "import org.x.y.B;\nimport java.util.List;\n", ["src/org/x/y/B.java"]),
        ("src/main.rs", "mod b;\nuse crate::c::{D, E};\nuse std::fs;\n", ["src/b.rs", "src/c/mod.rs"]),
    ],
)
def test_imports_come_first_and_in_their_order(tmp_path: Path, relative: str, text: str, files: list[str]) -> None:
    others = dict.fromkeys([*files, "elsewhere/b.py", "elsewhere/c.h"], "shown\n")
    shown = _shown(tmp_path, {relative: text, **others}, relative)
    assert shown[: len(files)] == files
    assert not any(name.startswith("elsewhere") for name in shown)


def test_neighbours_by_alike_names_then_by_name(tmp_path: Path) -> None:
    names = ["cart_test.py", "alpha.py", "shop_cart.py", "cart.js", "zeta.py", "sub/cart.py", "shop_cart_items.py"]
    shown = _shown(tmp_path, dict.fromkeys(names, "x = 1\n"), "shop_cart.py")
    assert shown == ["shop_cart_items.py", "cart_test.py", "alpha.py", "zeta.py"]


def test_the_budget_holds_and_cuts_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line_{number} = {number}\n" for number in range(40))
    sources = [source_with(tmp_path, name, text) for name in ("a.py", "b.py", "c.py", "d.py")]
    (first, second) = _context(sources, len(text) + 300).files_for(sources[0])
    assert (first.path, first.text) == ("b.py", text)
    assert 250 < len(second.text) <= 300
    assert text.startswith(second.text)
    assert second.text.endswith("\n")
    assert _context(sources, 0).files_for(sources[0]) == ()


def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    source, gone = source_with(tmp_path, "a.py", "import b\n"), source_with(tmp_path, "b.py", "x\n")
    context = RepositoryContext({"a.py": source.path, "b.py": gone.path}, lambda path: None, 1000)
    assert context.files_for(source) == ()


def test_only_listed_files_are_shown(tmp_path: Path) -> None:
    source = source_with(tmp_path, "pkg/a.py", "from pkg import secrets\n")
    source_with(tmp_path, "pkg/secrets.py", "TOKEN = 1\n")
    assert _context([source]).files_for(source) == ()
    outside = source_with(tmp_path, "b.py", "from ..up import x\nfrom ....above import y\n")
    assert _context([outside]).files_for(outside) == ()


_LONG = "x = 'é';" * 30


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", f"class A:\n    def f(self):\n        {_LONG}\n\nB = 2\n", "class A:\n    def f(self):\n\nB = 2\n"),
        ("a.py", "def f():\n    ...\n\ndef g():\n    return 1\n", "def f():\n\ndef g():\n    return 1\n"),
        ("a.ts", f"class A {{\n  f(a: string): number {{ {_LONG} }}\n}}\n", "class A {\n  f(a: string): number\n}\n"),
        ("a.go", f"package a\n\nfunc (s *S) F() int {{\n{_LONG} }}\n", "package a\n\nfunc (s *S) F() int\n"),
        ("a.rs", f"impl A {{\n    fn f() -> i32 {{ {_LONG} }}\n}}\n", "impl A {\n    fn f() -> i32\n}\n"),
        ("A.java", f"class A {{\n  A() {{ {_LONG} }}\n  int f() {{ }}\n}}\n", "class A {\n  A()\n  int f()\n}\n"),
        ("a.cpp", f"int A::f() {{ {_LONG} }}\nstruct S {{ int a; }};\n", "int A::f()\nstruct S { int a; };\n"),
        ("a.lua", f"function f()\n  {_LONG}\nend\n", f"function f()\n  {_LONG}\nend\n"),
    ],
)
def test_an_outline_is_the_text_without_long_and_unwritten_bodies(
    tmp_path: Path, name: str, text: str, expected: str
) -> None:
    assert outline(source_with(tmp_path, name, text)) == expected


def test_a_file_is_shown_as_its_outline(tmp_path: Path) -> None:
    long = "def f(a):\n" + "    a += 1\n" * 200
    sources = [source_with(tmp_path, "a.py", "import b\n"), source_with(tmp_path, "b.py", long)]
    (shown,) = _context(sources).files_for(sources[0])
    assert shown.text == "def f(a):\n"


def test_imports_of_a_language_without_rules(tmp_path: Path) -> None:
    assert list(imports_of(source_with(tmp_path, "a.lua", "import x\n"))) == []
