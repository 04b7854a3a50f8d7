"""Source texts that are on no disk, and holes in a form that is easy to read, for the tests of the kinds of holes."""

from pathlib import Path, PurePath

import lsp_server.bulk.kinds  # noqa: F401  registers them
from lsp_server.bulk.grammars import language_of
from lsp_server.bulk.holes import KINDS, Hole, KindOptions, SourceText


def source_text(name: str, text: str, language: str | None = None) -> SourceText:
    """A text as if it had been read from a file of this name."""
    found = language_of(PurePath(name), text) if language is None else language
    return SourceText(Path("/workspace", name), name, found, text, digest="", mtime_ns=0, mode=0o644)


def find(kind: str, name: str, text: str, options: KindOptions | None = None) -> list[Hole]:
    """The holes of one kind in a text."""
    return list(KINDS[kind].find(source_text(name, text), options or KindOptions()))


def drawn(holes: list[Hole], fill: str = "@") -> str:
    """The text of one file with all of its holes filled with a sign; fails where they overlap."""
    text, pieces, end = holes[0].source.text, list[str](), 0
    for hole in holes:
        assert end <= hole.start <= hole.end <= len(text)
        pieces += [text[end : hole.start], hole.before_fill, fill, hole.after_fill]
        end = hole.end
    return "".join([*pieces, text[end:]])
