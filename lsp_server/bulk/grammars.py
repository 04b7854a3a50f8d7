"""Languages of files, how they are commented, and their syntax trees. Nothing here knows holes.

A language is known by its file's name or, in a file without a suffix, by its first line. Some have a grammar; for
the others ``parse`` and ``num_errors`` answer None. Grammars are loaded when first needed; trees and parsers belong to
the thread that asked.
"""

import importlib
import re
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

import tree_sitter

from lsp_server.errors import UsageError


@dataclass(frozen=True)
class Language:
    """What is known of one language."""

    name: str
    suffixes: tuple[str, ...]
    line_comment: str = ""
    block_comment: tuple[str, str] | None = None
    grammar: str = ""
    """``module:function`` that gives the grammar; empty: there is none."""
    default_indent: str = "    "
    """One level, for files that show none."""
    aliases: tuple[str, ...] = ()
    """Other names a person may type; those of interpreters in a first line too."""
    file_names: tuple[str, ...] = ()
    directive: str = ""
    """What a line for the preprocessor begins with; it may stand in the first column inside any block."""
    has_labels: bool = False
    """Whether a label may stand in the first column inside a function."""
    literals: str = ""
    """The family in ``engine.literals`` that tells where strings go over lines; empty: that is not known."""


_C_BLOCK = ("/*", "*/")
_XML_BLOCK = ("<!--", "-->")

LANGUAGES: dict[str, Language] = {
    language.name: language
    for language in (
        Language(
            "python",
            (".py", ".pyi", ".pyw"),
            "#",
            None,
            "tree_sitter_python:language",
            aliases=("py", "pypy"),
            literals="python",
        ),
        Language(
            "javascript",
            (".js", ".mjs", ".cjs", ".jsx"),
            "//",
            _C_BLOCK,
            "tree_sitter_javascript:language",
            "  ",
            ("js", "jsx", "node", "nodejs", "bun"),
            literals="javascript",
        ),
        Language(
            "typescript",
            (".ts", ".mts", ".cts"),
            "//",
            _C_BLOCK,
            "tree_sitter_typescript:language_typescript",
            "  ",
            ("ts", "ts-node", "tsx-node", "deno"),
            literals="javascript",
        ),
        Language(
            "tsx",
            (".tsx",),
            "//",
            _C_BLOCK,
            "tree_sitter_typescript:language_tsx",
            "  ",
            ("typescriptreact",),
            literals="javascript",
        ),
        Language(
            "go", (".go",), "//", _C_BLOCK, "tree_sitter_go:language", "\t", ("golang",), has_labels=True, literals="go"
        ),
        Language(
            "rust",
            (".rs",),
            "//",
            _C_BLOCK,
            "tree_sitter_rust:language",
            aliases=("rs", "rust-script"),
            literals="rust",
        ),
        Language("java", (".java",), "//", _C_BLOCK, "tree_sitter_java:language", literals="java"),
        Language("c", (".c", ".h"), "//", _C_BLOCK, "tree_sitter_c:language", directive="#", has_labels=True),
        Language(
            "cpp",
            (".cpp", ".cc", ".cxx", ".c++", ".hpp", ".hh", ".hxx", ".h++", ".ipp", ".tpp", ".inl", ".cu", ".cuh"),
            "//",
            _C_BLOCK,
            "tree_sitter_cpp:language",
            aliases=("c++", "cplusplus", "cuda"),
            directive="#",
            has_labels=True,
            literals="cpp",
        ),
        Language("csharp", (".cs",), "//", _C_BLOCK, aliases=("c#", "cs"), directive="#"),
        Language("kotlin", (".kt", ".kts"), "//", _C_BLOCK, aliases=("kt",), literals="java"),
        Language("scala", (".scala", ".sc"), "//", _C_BLOCK, literals="java"),
        Language("swift", (".swift",), "//", _C_BLOCK, literals="java"),
        Language("dart", (".dart",), "//", _C_BLOCK),
        Language("php", (".php",), "//", _C_BLOCK),
        Language("zig", (".zig",), "//"),
        Language("ruby", (".rb", ".rake"), "#", aliases=("rb",), file_names=("Rakefile", "Gemfile")),
        Language("shell", (".sh", ".bash", ".zsh"), "#", aliases=("sh", "bash", "zsh", "dash", "ksh")),
        Language("perl", (".pl", ".pm"), "#"),
        Language("r", (".r", ".R"), "#", aliases=("Rscript",)),
        Language("julia", (".jl",), "#"),
        Language("elixir", (".ex", ".exs"), "#"),
        Language("make", (".mk",), "#", file_names=("Makefile", "makefile", "GNUmakefile"), default_indent="\t"),
        Language("cmake", (".cmake",), "#", file_names=("CMakeLists.txt",)),
        Language("dockerfile", (".dockerfile",), "#", file_names=("Dockerfile", "Containerfile")),
        Language("yaml", (".yaml", ".yml"), "#", default_indent="  "),
        Language("toml", (".toml",), "#"),
        Language("sql", (".sql",), "--", _C_BLOCK),
        Language("lua", (".lua",), "--"),
        Language("haskell", (".hs",), "--"),
        Language("css", (".css",), "", _C_BLOCK, default_indent="  "),
        Language("scss", (".scss", ".less"), "//", _C_BLOCK, default_indent="  "),
        Language("html", (".html", ".htm"), "", _XML_BLOCK, default_indent="  "),
        Language("xml", (".xml", ".svg"), "", _XML_BLOCK, default_indent="  "),
        Language("vue", (".vue", ".svelte"), "//", _XML_BLOCK, default_indent="  "),
    )
}

_BY_SUFFIX = {suffix: language.name for language in LANGUAGES.values() for suffix in language.suffixes}
_BY_FILE_NAME = {name: language.name for language in LANGUAGES.values() for name in language.file_names}
_BY_ALIAS = {name: language.name for language in LANGUAGES.values() for name in (language.name, *language.aliases)}
_SHEBANG = re.compile(r"#!\s*(\S+)(.*)")
_CPP_HEADER = re.compile(
    r"^\s*(class\s+\w+|namespace\b|template\s*<|using\s+\w+|public:|private:|protected:)|\bstd::", re.MULTILINE
)


def language_of(path: PurePath, text: str) -> str:
    """The name of a file's language, or an empty string. ``text`` decides where the name does not."""
    name = _BY_FILE_NAME.get(path.name) or _BY_SUFFIX.get(path.suffix) or _BY_SUFFIX.get(path.suffix.lower(), "")
    if name == "c" and path.suffix.lower() == ".h" and _CPP_HEADER.search(text):
        return "cpp"
    return name or ("" if path.suffix else _from_shebang(text))


def language_named(name: str) -> Language:
    """What a person means by ``name``. Raises ``UsageError``."""
    known = _BY_ALIAS.get(name) or _BY_ALIAS.get(name.lower())
    if known is None:
        raise UsageError(f"unknown language {name!r}; known are {', '.join(LANGUAGES)}")
    return LANGUAGES[known]


def _from_shebang(text: str) -> str:
    match = _SHEBANG.match(text)
    if match is None:
        return ""
    words = [PurePath(match[1]).name, *match[2].split()]
    if words[0] == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word] or [""]
    return _BY_ALIAS.get(re.sub(r"[\d.]+$", "", words[0]), "")


class Syntax:
    """A text and its syntax tree. Nodes count bytes; ``offset`` turns these into characters of ``text``."""

    def __init__(self, language: str, text: str) -> None:
        self.language = language
        self.text = text
        data = text.encode("utf-8", "replace")  # a lone surrogate becomes one other character
        self.root = _parser(language).parse(data).root_node
        self._data = b"" if len(data) == len(text) else data
        self._num_bytes = self._num_chars = 0

    def offset(self, num_bytes: int) -> int:
        """How many characters the first ``num_bytes`` bytes are."""
        if not self._data:
            return num_bytes
        if num_bytes < self._num_bytes:
            self._num_bytes = self._num_chars = 0
        self._num_chars += len(self._data[self._num_bytes : num_bytes].decode("utf-8", "replace"))
        self._num_bytes = num_bytes  # from here the next one is counted: nodes are mostly asked for in order
        return self._num_chars

    def start(self, node: tree_sitter.Node) -> int:
        """Where a node begins, in characters."""
        return self.offset(node.start_byte)

    def end(self, node: tree_sitter.Node) -> int:
        """Where a node ends, in characters."""
        return self.offset(node.end_byte)

    def captures(self, query: str) -> dict[str, list[tree_sitter.Node]]:
        """Nodes by the names that a tree-sitter query gives them, each list from top to bottom."""
        found = tree_sitter.QueryCursor(_query(self.language, query)).captures(self.root)
        return {name: sorted(nodes, key=lambda node: (node.start_byte, node.end_byte)) for name, nodes in found.items()}


def parse(language: str, text: str) -> Syntax | None:
    """The tree of a text; None for a language without a grammar. Never raises for what a text contains."""
    if language not in LANGUAGES or not LANGUAGES[language].grammar:
        return None
    last: Syntax | None = getattr(_of_thread, "last", None)
    if last is None or last.language != language or last.text != text:
        last = _of_thread.last = Syntax(language, text)  # the kinds of holes ask for the same text one after another
    return last


def num_errors(language: str, text: str) -> int | None:
    """How many places of a text are wrong for its grammar; None for a language without one."""
    syntax = parse(language, text)
    if syntax is None:
        return None
    count, nodes = 0, [syntax.root]
    while nodes:
        node = nodes.pop()
        if node.has_error:
            count += node.is_error or node.is_missing
            nodes += node.children
    return count


def multiline_strings(language: str, text: str) -> list[tuple[int, int]]:
    """Where the string literals that go over several lines begin and end, in characters; without a grammar, none."""
    syntax = parse(language, text)
    if syntax is None:
        return []
    places, nodes = list[tuple[int, int]](), [syntax.root]
    while nodes:
        node = nodes.pop()
        if node.start_point.row == node.end_point.row:
            continue
        if "string" in node.type and node.type != "concatenated_string":
            places.append((syntax.start(node), syntax.end(node)))
        else:
            nodes += reversed(node.children)
    return places


_of_thread = threading.local()


def _parser(language: str) -> tree_sitter.Parser:
    parsers: dict[str, tree_sitter.Parser] = _of_thread.__dict__.setdefault("parsers", {})
    if language not in parsers:
        parsers[language] = tree_sitter.Parser(_grammar(language))
    return parsers[language]


@cache
def _grammar(language: str) -> tree_sitter.Language:
    module, _, function = LANGUAGES[language].grammar.partition(":")
    return tree_sitter.Language(getattr(importlib.import_module(module), function)())


@cache
def _query(language: str, source: str) -> tree_sitter.Query:
    return tree_sitter.Query(_grammar(language), source)
