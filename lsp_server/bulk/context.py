"""What the model sees of other files: those that a file imports, then its neighbours, as much as a budget allows.

The choice depends on the file alone, not on the hole, so that what is shown is computed once for all holes of a file.
Of a file its outline is shown: long bodies of functions would take most of the room. Only files that could have holes
are shown: none that are ignored, secret, vendored or generated.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.request import FileContext
from lsp_server.bulk.grammars import LANGUAGES, parse
from lsp_server.bulk.holes import KindOptions, SourceText
from lsp_server.bulk.kinds.stubs import find_stubs

_MAX_BODY_CHARS = 160
_MIN_SHOWN_CHARS = 100
_MAX_NEIGHBOURS = 8
_OUTLINED = re.compile(r"function|method|constructor")
_WORD = re.compile(r"[A-Za-z][a-z]*|\d+")


class RepositoryContext:
    """Chooses and remembers; for one run."""

    def __init__(self, files: Mapping[str, Path], read: Callable[[Path], SourceText | None], max_chars: int) -> None:
        """Of ``files``, by their names relative to the workspace, ``max_chars`` are shown; 0 is none.

        ``read`` answers None for a file that cannot be shown.
        """
        self._files = files
        self._read = read
        self._max_chars = max_chars
        self._beside: dict[str, list[str]] = {}
        for relative in sorted(files) if max_chars else ():
            self._beside.setdefault(posixpath.dirname(relative), []).append(relative)
        self._chosen: dict[str, tuple[FileContext, ...]] = {}
        self._texts: dict[str, str] = {}

    def files_for(self, source: SourceText) -> tuple[FileContext, ...]:
        """What is shown before this file, the most telling first; the same for all of its holes."""
        if source.relative not in self._chosen:
            self._chosen[source.relative] = tuple(self._choose(source)) if self._max_chars else ()
        return self._chosen[source.relative]

    def _choose(self, source: SourceText) -> Iterator[FileContext]:
        left = self._max_chars
        for relative in dict.fromkeys((*self._imported(source), *self._neighbours(source))):
            text = _cut(self._text(relative), left)
            if text and relative != source.relative:
                left -= len(text)
                yield FileContext(relative, text)

    def _imported(self, source: SourceText) -> Iterator[str]:
        folder = posixpath.dirname(source.relative)
        # what is imported may count from the file's folder, from the root, or from a source folder between them
        parts = folder.split("/") if folder else []
        bases = ["/".join(parts[:num_parts]) for num_parts in range(len(parts), -1, -1)]
        for stem, suffixes in imports_of(source):
            names = (posixpath.normpath(posixpath.join(base, stem + end)) for base in bases for end in suffixes)
            if (found := next((name for name in names if name in self._files), None)) is not None:
                yield found

    def _neighbours(self, source: SourceText) -> list[str]:
        """Files of the same language beside it, those with the most alike names first."""
        suffixes = LANGUAGES[source.language].suffixes if source.language in LANGUAGES else (source.path.suffix,)
        words = _words(source.relative)
        beside = [name for name in self._beside[posixpath.dirname(source.relative)] if name.endswith(suffixes)]
        return sorted(beside, key=lambda name: (-len(words & _words(name)), name))[:_MAX_NEIGHBOURS]

    def _text(self, relative: str) -> str:
        """What may be shown of a file."""
        if relative not in self._texts:
            source = self._read(self._files[relative])
            self._texts[relative] = "" if source is None else outline(source)
        return self._texts[relative]


@dataclass(frozen=True)
class _Imports:
    """How the files of a language name each other."""

    pattern: re.Pattern[str]
    """Its first group is what is imported."""
    suffixes: tuple[str, ...]
    """What may be missing from the name to be a file's."""
    separator: str = ""
    """What stands for a slash in it."""


_SCRIPT_SUFFIXES = ("", ".ts", ".tsx", ".js", ".jsx", ".mjs", ".d.ts", "/index.ts", "/index.tsx", "/index.js")
_SCRIPT = _Imports(re.compile(r"""\b(?:from|import|require\(|import\()\s*["'](\.[^"'\n]+)["']"""), _SCRIPT_SUFFIXES)
_INCLUDE = _Imports(re.compile(r'^\s*#\s*include\s+"([^"\n]+)"', re.MULTILINE), ("",))
_IMPORTS = {
    "javascript": _SCRIPT,
    "typescript": _SCRIPT,
    "tsx": _SCRIPT,
    "c": _INCLUDE,
    "cpp": _INCLUDE,
    "java": _Imports(re.compile(r"^\s*import\s+(?:static\s+)?([\w.]+)\s*;", re.MULTILINE), (".java",), "."),
    "rust": _Imports(
        re.compile(r"^\s*(?:pub(?:\(\w+\))?\s+)?(?:mod\s+|use\s+(?:crate|super|self)::)(\w+)", re.MULTILINE),
        (".rs", "/mod.rs"),
    ),
}
_PYTHON_SUFFIXES = (".py", "/__init__.py")
_PYTHON = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]+)|import[ \t]+([\w., \t]+))", re.MULTILINE
)


def imports_of(source: SourceText) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What a file imports, as paths that may lack one of the suffixes beside them."""
    if source.language == "python":
        yield from ((stem, _PYTHON_SUFFIXES) for stem in _python_imports(source.text))
    elif (imports := _IMPORTS.get(source.language)) is not None:
        for match in imports.pattern.finditer(source.text):
            name = match[1]
            yield name.replace(imports.separator, "/") if imports.separator else name, imports.suffixes


def _python_imports(text: str) -> Iterator[str]:
    for match in _PYTHON.finditer(text):
        module, names, plain = match.groups()
        if plain:
            yield from (words[0].replace(".", "/") for part in plain.split(",") if (words := part.split()))
            continue
        num_dots = len(module) - len(module.lstrip("."))
        package = "./" * min(num_dots, 1) + "../" * (num_dots - 1) + module[num_dots:].replace(".", "/")
        if module[num_dots:]:
            yield package
        # what is imported may be a module as well
        parts = (words[0] for part in names.strip("()").split(",") if (words := part.split()))
        yield from (f"{package.rstrip('/')}/{name}" for name in parts if name.isidentifier())


def outline(source: SourceText) -> str:
    """The text without what functions do, but for the shortest; the whole text where there is no grammar.

    Of a function that is not written yet nothing is left but its head: the model would write the others like it.
    """
    syntax = parse(source.language, source.text)
    if syntax is None:
        return source.text
    unwritten = [hole.start for hole in find_stubs(source, KindOptions())]
    pieces: list[str] = []
    end, nodes = 0, [syntax.root]
    while nodes:
        node = nodes.pop()
        body = node.child_by_field_name("body") if _OUTLINED.search(node.type) else None
        if body is None:
            nodes += reversed(node.children)
            continue
        start, body_end = syntax.start(body), syntax.end(body)
        if body_end - start > _MAX_BODY_CHARS or any(start <= place <= body_end for place in unwritten):
            pieces.append(source.text[end:start].rstrip())
            end = body_end
    return "".join([*pieces, source.text[end:]])


def _words(relative: str) -> set[str]:
    return set(_WORD.findall(posixpath.basename(relative).rpartition(".")[0].lower()))


def _cut(text: str, max_chars: int) -> str:
    """The whole text, or its start up to a line's end; nothing where too little would be left."""
    if len(text) <= max_chars:
        return text
    end = text.rfind("\n", 0, max_chars) + 1
    return text[:end] if end >= _MIN_SHOWN_CHARS else ""
