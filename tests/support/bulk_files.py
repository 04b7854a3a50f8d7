"""Files, holes and fills for the tests of what is done with them."""

import hashlib
from pathlib import Path
from typing import Any

from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import Hole, SourceText


def write_source(root: Path, relative: str, content: bytes, language: str = "") -> SourceText:
    """A file with this content, as it would be selected."""
    path = root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return source_of(path, relative, language)


def source_of(path: Path, relative: str, language: str = "") -> SourceText:
    """A file that exists."""
    content, status = path.read_bytes(), path.stat()
    raw = content.decode()
    text = raw.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    eol = max(("\n", "\r\n", "\r"), key=lambda end: _count(raw, end))
    digest = hashlib.sha256(content).hexdigest()
    has_bom = raw.startswith("\ufeff")
    return SourceText(path, relative, language, text, digest, status.st_mtime_ns, status.st_mode, eol, has_bom)


def _count(raw: str, end: str) -> int:
    num_pairs = raw.count("\r\n")
    return num_pairs if end == "\r\n" else raw.count(end) - num_pairs


def hole_in(source: SourceText, replaced: str, **fields: Any) -> Hole:
    """The hole in place of a piece of text that is there once."""
    assert source.text.count(replaced) == 1
    start = source.text.index(replaced)
    return Hole(source, fields.pop("kind", "markers"), start, start + len(replaced), **fields)


def fill(hole: Hole, text: str, state: FillState = FillState.FILLED, **fields: Any) -> Fill:
    """An outcome for a hole."""
    return Fill(hole, state, text, key="k", **fields)
