"""Where documentation goes. A fill is drawn as ``@``."""

import pytest

from lsp_server.bulk.grammars import num_errors
from lsp_server.bulk.holes import KindOptions
from tests.support.bulk_sources import drawn, find


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", "def f(x):\n    return x\n", 'def f(x):\n    """@"""\n    return x\n'),
        ("a.py", "def f(x): return x\n", 'def f(x):\n    """@"""\n    return x\n'),
        ("a.py", "def f():  # noqa\n    pass\n", 'def f():  # noqa\n    """@"""\n    pass\n'),
        ("a.py", "def f():\n  # why\n  pass\n", 'def f():\n  """@"""\n  # why\n  pass\n'),
        ("a.py", "class A:\n    x = 1\n", 'class A:\n    """@"""\n    x = 1\n'),
        ("a.py", "@x\nasync def f(\n    a,\n):\n\tpass\n", '@x\nasync def f(\n    a,\n):\n\t"""@"""\n\tpass\n'),
        ("a.py", "if x:\n    def f(): pass\n", 'if x:\n    def f():\n        """@"""\n        pass\n'),
        ("a.js", "function f() {}\n", "/**\n * @\n */\nfunction f() {}\n"),
        ("a.js", "export default class A {}\n", "/**\n * @\n */\nexport default class A {}\n"),
        ("a.ts", "@x\nexport abstract class A {}\n", "/**\n * @\n */\n@x\nexport abstract class A {}\n"),
        ("a.go", "type T struct{}\n", "// T @\ntype T struct{}\n"),
        ("a.go", "type (\n\tT int\n)\n", "type (\n\t// T @\n\tT int\n)\n"),
        ("a.go", "func (t *t) F() {}\n", "// F @\nfunc (t *t) F() {}\n"),
        (
            "a.rs",
            "mod a {\n    #[inline]\n    pub fn f() {}\n}\n",
            "mod a {\n    /// @\n    #[inline]\n    pub fn f() {}\n}\n",
        ),
        ("A.java", "@B\npublic class A {}\n", "/**\n * @\n */\n@B\npublic class A {}\n"),
        ("a.c", "int x;\nint f(void) { return 1; }\n", "int x;\n/**\n * @\n */\nint f(void) { return 1; }\n"),
        (
            "a.cpp",
            "template <class T>\nT f(T x) { return x; }\n",
            "/**\n * @\n */\ntemplate <class T>\nT f(T x) { return x; }\n",
        ),
        (
            "a.cpp",
            "namespace n {\nstruct S { int x; };\n}\n",
            "namespace n {\n/**\n * @\n */\nstruct S { int x; };\n}\n",
        ),
    ],
)
def test_documentation_goes_where_the_language_has_it(name: str, text: str, expected: str) -> None:
    holes = find("docstrings", name, text)
    assert len(holes) == 1
    assert drawn(holes) == expected
    assert num_errors(holes[0].source.language, expected) == 0
    assert find("docstrings", name, drawn(holes, "x")) == []


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("a.py", "class A:\n    def f(self): pass\n    def _g(self): pass\n    def __h__(self): pass\n", ["A", "f"]),
        ("a.py", "def f():\n    def g(): pass\nclass _B:\n    def h(self): pass\n", ["f"]),
        ("a.py", "@overload\ndef f(x): ...\n@x.setter\ndef g(x): ...\n@override\ndef h(): ...\n", []),
        ("a.py", "def f():\n    '''Doc.'''\nclass B:\n    # c\n    r'''Doc.'''\n", []),
        ("a.pyi", "def f(): ...\n", []),
        ("a.js", "export function f() {}\nfunction g() {}\n", ["f"]),
        ("a.js", "function f() { function g() {} }\nif (x) { function h() {} }\nfunction _i() {}\n", ["f"]),
        ("a.js", "class A {\n  constructor() {}\n  f() {}\n  _g() {}\n  #h() {}\n}\n", ["A", "f"]),
        ("a.ts", "export class A {\n  private f() {}\n  public g() {}\n}\nclass B {\n  h() {}\n}\n", ["A", "g"]),
        ("a.js", "/** Doc. */\nfunction f() {}\n// doc\nexport function g() {}\n", []),
        ("a.js", "x(); export function f() {}\n", []),
        ("a.js", "/* licence */\n\nfunction f() {}\n", ["f"]),
        ("a.go", "func f() {}\n// F is.\nfunc F() {}\ntype t int\nfunc g() { type T int }\n", []),
        ("a.rs", "fn f() {}\npub(crate) fn g() {}\n/// Doc.\npub fn h() {}\n//! Doc.\npub struct S;\n", []),
        ("a.rs", "/// Doc.\n#[x]\npub struct S;\npub enum E {}\nimpl S {\n    pub fn f() {}\n}\n", ["E", "f"]),
        (
            "A.java",
            "class A {\n    public int f() { }\n    @Override\n    public int g() { }\n    int h() { }\n}\n",
            ["f"],
        ),
        ("a.c", "static int f(void) { return 1; }\nint main(void) { return 1; }\nint g(void);\n", []),
        ("a.cpp", "class A {\n    int f() {}\npublic:\n    int g() {}\nprivate:\n    int h() {}\n};\n", ["A", "g"]),
        ("a.cpp", "struct A {\n    int f() {}\n    void g() override {}\n};\nvoid A::h() {}\n", ["A", "f"]),
        ("a.cpp", "struct A {\n    static int f() {}\n};\n", ["A", "f"]),
        ("a.rb", "def f\nend\n", []),
    ],
)
def test_only_what_is_public_and_has_none(name: str, text: str, names: list[str]) -> None:
    assert [hole.name for hole in find("docstrings", name, text)] == names


def test_how_far_it_goes() -> None:
    (block,) = find("docstrings", "a.py", "def f(x):\n    return x\n", KindOptions(max_tokens=5))
    assert (block.is_block, block.min_indent, block.stop, block.max_tokens) == (True, 4, ('"""',), 5)
    (line,) = find("docstrings", "a.rs", "pub fn f() {}\n")
    assert (line.is_block, line.stop) == (False, ())
    (comment,) = find("docstrings", "a.js", "function f() {}\n")
    assert (comment.is_block, comment.min_indent, comment.stop) == (True, 1, ("*/",))
