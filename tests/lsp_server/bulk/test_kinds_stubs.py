"""What is a stub and what becomes of it. Where a fill would go is drawn as ``@``."""

import pytest

from lsp_server.bulk.grammars import num_errors
from lsp_server.bulk.holes import KindOptions
from tests.support.bulk_sources import drawn, find

PYTHON_STUBS = [
    "pass",
    "...",
    "raise NotImplementedError",
    "raise NotImplementedError()",
    'raise NotImplementedError("later")',
    "raise NotImplementedError from None",
    'raise RuntimeError("not implemented yet")',
    'assert False, "TODO"',
]


@pytest.mark.parametrize("statement", PYTHON_STUBS)
def test_python_statements(statement: str) -> None:
    (hole,) = find("stubs", "a.py", f"def f(x):\n    {statement}\n\n\ny = 1\n")
    assert drawn([hole]) == "def f(x):\n    @\n\n\ny = 1\n"
    assert (hole.name, hole.is_block, hole.min_indent) == ("f", True, 4)
    assert (hole.line, hole.column) == (2, 5)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", 'def f():\n    """Doc."""\n    pass\n', 'def f():\n    """Doc."""\n    @\n'),
        ("a.py", 'def f():\n    """Doc."""\n\n    pass\n', 'def f():\n    """Doc."""\n\n    @\n'),
        ("a.py", "def f(): 'Doc.'\n\nx = 1\n", "def f():\n    'Doc.'\n    @\n\nx = 1\n"),
        ("a.py", 'def f(): """A\n  b"""; pass\n', 'def f():\n  """A\n  b"""\n  @\n'),
        ("a.py", 'def f():\n    """Doc."""\n', 'def f():\n    """Doc."""\n    @\n'),
        ("a.py", "def f():\n    # TODO: sort\n    pass\n", "def f():\n    # TODO: sort\n    @\n"),
        ("a.py", "def f():\n    pass  # sort\n", "def f():\n    # sort\n    @\n"),
        ("a.py", "def f():\n    return None  # TODO: sort\n", "def f():\n    # TODO: sort\n    @\n"),
        ("a.py", "def f(): ...\n", "def f():\n    @\n"),
        ("a.py", "def f(): ...  # sort\n", "def f():\n    # sort\n    @\n"),
        ("a.py", "def f():  # noqa\n    pass;\n", "def f():  # noqa\n    @\n"),
        ("a.py", "def f():\n    # TODO\n\nx = 1\n", "def f():\n    # TODO\n    @\n\nx = 1\n"),
        ("a.py", "def f():\n", "def f():\n    @\n"),
        ("a.py", "def f():", "def f():\n    @"),
        ("a.py", "def f():\n  # FILL\n  pass\n", "def f():\n  @\n"),
        ("a.py", "class A:\n\tasync def f(self): pass\n", "class A:\n\tasync def f(self):\n\t\t@\n"),
        ("a.py", "def f():\n    # TODO: nothing yet\n    pass\n", "def f():\n    # TODO: nothing yet\n    @\n"),
        ("a.py", 'def f():\n    """A\n    nothing"""\n    pass\n', 'def f():\n    """A\n    nothing"""\n    @\n'),
        ("a.py", 'def f():\n    """A"""\n    # TODO\n\nx = 1\n', 'def f():\n    """A"""\n    # TODO\n    @\n\nx = 1\n'),
        ("a.py", 'def f():\n    """A"""\n    # FILL\n    # b\n', 'def f():\n    """A"""\n    # b\n    @\n'),
        ("a.py", "def f():\n# TODO\n", "def f():\n    @\n# TODO\n"),
        (
            "a.py",
            'if x:\n    y\nif x:\n    y\ndef f():\n  """A"""\n',
            'if x:\n    y\nif x:\n    y\ndef f():\n  """A"""\n  @\n',
        ),
        (
            "a.js",
            "/**\n * A.\n */\n/**\n * B.\n */\nfunction f() {}\n",
            "/**\n * A.\n */\n/**\n * B.\n */\nfunction f() {\n  @\n}\n",
        ),
        ("a.py", "def f(\n    x,\n):\n    ...\n", "def f(\n    x,\n):\n    @\n"),
        ("é.py", "é = 'ä€😀'\ndef f():\n    pass  # ü\nß = 1\n", "é = 'ä€😀'\ndef f():\n    # ü\n    @\nß = 1\n"),
        ("a.js", 'function f() { throw new Error("not implemented") }\n', "function f() {\n  @\n}\n"),
        ("a.js", "function f() {\n  throw new NotImplementedError();\n}\n", "function f() {\n  @\n}\n"),
        ("a.js", "const f = () => {\n  throw Error('TODO');\n};\n", "const f = () => {\n  @\n};\n"),
        (
            "a.js",
            "class A {\n  f() {\n    // TODO: sort\n  }\n}\n",
            "class A {\n  f() {\n    // TODO: sort\n    @\n  }\n}\n",
        ),
        ("a.js", "async function* f() {}\n", "async function* f() {\n  @\n}\n"),
        ("a.ts", "class A {\n    f(): number {\n    }\n}\n", "class A {\n    f(): number {\n        @\n    }\n}\n"),
        ("a.tsx", "const f = (): X => { throw new Error(`todo`) };\n", "const f = (): X => {\n  @\n};\n"),
        ("a.go", 'func f() int {\n\tpanic("TODO")\n}\n', "func f() int {\n\t@\n}\n"),
        ("a.go", 'func f() int {\n\tpanic("implement me") // sort\n}\n', "func f() int {\n\t// sort\n\t@\n}\n"),
        (
            "a.go",
            'func f() (int, error) {\n\treturn 0, errors.New("not implemented")\n}\n',
            "func f() (int, error) {\n\t@\n}\n",
        ),
        ("a.go", "func f() {}\n", "func f() {\n\t@\n}\n"),
        ("a.rs", "fn f() -> i32 { todo!() }\n", "fn f() -> i32 {\n    @\n}\n"),
        ("a.rs", 'fn f() {\n    unimplemented!("x {}", 1);\n}\n', "fn f() {\n    @\n}\n"),
        ("a.rs", "fn f() -> u8 {\n    // TODO\n    0\n}\n", "fn f() -> u8 {\n    // TODO\n    @\n}\n"),
        (
            "A.java",
            'class A {\n    int f() { throw new UnsupportedOperationException("Not supported yet."); }\n}\n',
            "class A {\n    int f() {\n        @\n    }\n}\n",
        ),
        (
            "A.java",
            "class A {\n    int f() {\n        // TODO Auto-generated method stub\n        return 0;\n    }\n}\n",
            "class A {\n    int f() {\n        // TODO Auto-generated method stub\n        @\n    }\n}\n",
        ),
        (
            "a.c",
            "int f(int x) {\n    return -1; /* TODO: sort */\n}\n",
            "int f(int x) {\n    /* TODO: sort */\n    @\n}\n",
        ),
        ("a.c", "static void f(void)\n{\n}\n", "static void f(void)\n{\n    @\n}\n"),
        ("a.c", 'int f(void)\n{\n  assert(!"not implemented");\n}\n', "int f(void)\n{\n  @\n}\n"),
        (
            "a.cpp",
            'int A::f() const { throw std::logic_error("not implemented"); }\n',
            "int A::f() const {\n    @\n}\n",
        ),
        ("a.cpp", "template <class T>\nT f(T x) {}\n", "template <class T>\nT f(T x) {\n    @\n}\n"),
    ],
)
def test_the_body_is_what_is_filled(name: str, text: str, expected: str) -> None:
    holes = find("stubs", name, text)
    assert len(holes) == 1
    assert drawn(holes) == expected
    assert holes[0].is_block
    assert holes[0].suffix.lstrip().startswith("}") == ("{" in text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "def f():\n    return 1\n"),
        ("a.py", "def f():\n    pass\n    return 1\n"),
        ("a.py", "def f():\n    return None\n"),
        ("a.py", "def f():\n    raise ValueError('wrong')\n"),
        ("a.py", "def f():\n    raise NotImplementedError('subclasses must override this')\n"),
        ("a.py", "class A:\n    pass\n"),
        ("a.py", "@abstractmethod\ndef f(): pass\n"),
        ("a.py", "class A:\n    @property\n    @abc.abstractmethod\n    def f(self):\n        '''Doc.'''\n"),
        ("a.py", "class A(Protocol[T]):\n    def f(self): ...\n"),
        ("a.py", "class A(typing.Protocol):\n    @property\n    def f(self): ...\n"),
        ("a.py", "class A(metaclass=ABCMeta):\n    def f(self): raise NotImplementedError\n"),
        ("a.py", "@typing.overload\ndef f(x: int) -> int: ...\n"),
        ("a.py", "@click.group()\ndef f():\n    '''Doc.'''\n"),
        ("a.py", "@functools.singledispatch\ndef f(x):\n    raise NotImplementedError\n"),
        ("a.pyi", "def f(): ...\n"),
        ("a.py", 'def f():\n    """Does nothing."""\n'),
        ("a.py", 'def f():\n    """Sort."""\n    pass  # intentionally\n'),
        ("a.py", 'def f():\n    """Subclasses must override this."""\n    raise NotImplementedError\n'),
        ("a.py", "f = lambda: ...\n"),
        ("a.py", "def f():\n    <FILL>\n"),
        ("a.py", "def f():\n    <> pass\n"),
        ("a.js", "function f() { <FILL> }\n"),
        ("a.js", "f(() => {}); g(function () {});\n"),
        ("a.js", "class A { constructor() {} }\n"),
        ("a.js", "const a = { f() {} };\n"),
        ("a.js", "function f() { /* on purpose */ }\n"),
        ("a.js", "function f() { throw new Error('out of range') }\n"),
        ("a.js", "const f = (x) => x;\n"),
        ("a.ts", "class A { constructor(private x: number) {} }\n"),
        ("a.ts", "abstract class A { abstract f(): void; override g(): void {} }\n"),
        ("a.ts", "interface A { f(): void }\ndeclare function g(): void;\nfunction h(a: string): void;\n"),
        ("a.go", "func (t T) isNode() {}\n"),
        ("a.go", 'func f() { panic("index out of range") }\n'),
        ("a.rs", "trait A { fn f(&self); fn g(&self) {} }\n"),
        ("a.rs", "fn f() -> u8 { 0 }\n"),
        ("A.java", "class A { A() {} @Override public void f() {} abstract int g(); }\n"),
        ("A.java", "interface A { default void f() {} int g(); }\n"),
        ("A.java", "class A { void f() { throw new UnsupportedOperationException(); } }\n"),
        ("a.c", "int f(void);\nint g(void) { return 0; }\n"),
        ("a.cpp", "A::A() : x(1) {}\nA::~A() {}\n"),
        ("a.cpp", "struct A { virtual void f() {} void g() override {} void h() = delete; A() = default; };\n"),
        ("a.cpp", "auto f = [](int x) {};\n"),
        ("a.rb", "def f\nend\n"),
    ],
)
def test_what_is_written_or_meant_for_others_is_left_alone(name: str, text: str) -> None:
    assert find("stubs", name, text) == []


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("a.py", "def f(): ...\nclass A:\n    def g(self): ...\n", ["f", "g"]),
        ("a.js", "const f = () => { throw Error('TODO') }, o = { g: () => { throw Error('TODO') } };\n", ["f", "g"]),
        ("a.ts", "class A { h = () => { throw Error('TODO') }; #p() {} }\n", ["h", "#p"]),
        ("a.cpp", "int *A::f(int) {}\nbool operator==(B a, B b) {}\n", ["A::f", "operator=="]),
    ],
)
def test_holes_have_their_functions_names(name: str, text: str, names: list[str]) -> None:
    assert [hole.name for hole in find("stubs", name, text)] == names


def test_markers_break_nothing_around_them() -> None:
    text = "x = <FILL>\ndef f():\n    pass  # <FILL>: it\n\ny = ????\ndef g():\n    <FILL>\n\ndef h(a=????): ...\n"
    holes = find("stubs", "a.py", text, KindOptions(markers={"*": ("????",)}))
    assert [hole.name for hole in holes] == ["f", "h"]
    assert holes[0].before_fill == "# <FILL>: it\n    "
    assert [hole.name for hole in find("docstrings", "a.py", text)] == ["f", "g", "h"]


def test_own_markers_in_a_stub_are_replaced_with_it() -> None:
    options = KindOptions(markers={"*": ("# HERE",)}, max_tokens=9)
    (hole,) = find("stubs", "a.py", "def f():\n    # HERE\n    # kept\n    pass\n", options)
    assert drawn([hole]) == "def f():\n    # kept\n    @\n"
    assert hole.max_tokens == 9


_FILLS = {"a.py": "return 1", "a.rs": "1", "a.go": "return 1"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "def f(): pass\nclass A:\n    def g(self): ...\n"),
        ("a.js", "function f() { throw Error('TODO') }\n"),
        ("a.go", "package a\nfunc f() int { panic(`TODO`) }\n"),
        ("a.rs", "fn f() -> u8 { todo!() }\n"),
        ("A.java", "class A { int f() {} }\n"),
        ("a.c", "int f(void) {}\n"),
        ("a.cpp", "int f() {}\n"),
    ],
)
def test_a_filled_stub_parses(name: str, text: str) -> None:
    holes = find("stubs", name, text)
    filled = drawn(holes, _FILLS.get(name, "return 1;"))
    assert num_errors(holes[0].source.language, text) == 0
    assert num_errors(holes[0].source.language, filled) == 0
    assert find("stubs", name, filled) == []
