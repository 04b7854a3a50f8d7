"""A workspace's files and holes in a few words, for tests of a run."""

from pathlib import Path, PurePath
from typing import Any

from lsp_server.bulk.grammars import language_of
from lsp_server.bulk.holes import Hole, SourceText
from tests.support.bulk_files import write_source

MARKER = "<FILL>"


def source_with(root: Path, relative: str, text: str) -> SourceText:
    """A file that is on the disk as well, in the language that its name says."""
    return write_source(root, relative, text.encode(), language_of(PurePath(relative), text))


def marker_holes(source: SourceText, **fields: Any) -> list[Hole]:
    """Each marker's place, the rest of a line unless told otherwise."""
    holes, end = list[Hole](), 0
    while (start := source.text.find(MARKER, end)) >= 0:
        end = start + len(MARKER)
        holes.append(Hole(source, "markers", start, end, **fields))
    return holes
