"""Reading a file as source text. Says in one line why a file is none."""

import codecs
import hashlib
import os
import re
import stat
from pathlib import Path

from lsp_server.bulk.grammars import language_of
from lsp_server.bulk.holes import SourceText
from lsp_server.errors import UnusableFileError

_HEAD_BYTES = 8192
_EOL = re.compile(r"\r\n?")
_FIRST_COMMENTS = re.compile(r"(?:\s+|(?:#|//|--|;|%)[^\n]*|/\*.*?\*/|<!--.*?-->|<\?[^\n]*)*", re.DOTALL)
_SAYS_GENERATED = re.compile(
    r"""@generated\b|\bdo\ not\ (?:edit|modify)\b|\b(?:auto-?|automatically\ )generated\b
        |^\W*(?:(?-i:Generated)|(?:(?:this|the)\ (?:file|code)\ (?:is|was|has\ been)|code)\ generated)
        \ (?:by|from|with|using)\b""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)


def read_source(root: Path, path: Path, max_file_bytes: int) -> SourceText:
    """The text of a file of the workspace ``root``; both paths absolute.

    Lines end with LF in it, whatever ended them: CRLF, CR or LF. Raises ``UnusableFileError`` for what is not a regular
    file of UTF-8 text of at most ``max_file_bytes``, or cannot be read.
    """
    relative = path.relative_to(root).as_posix()
    data, status = _read(relative, path, max_file_bytes)
    try:
        raw = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableFileError(relative, f"is not UTF-8 (byte {error.start + 1}); convert it first") from None
    text = _EOL.sub("\n", raw) if "\r" in raw else raw
    return SourceText(
        path=path,
        relative=relative,
        language=language_of(path, text),
        text=text,
        digest=hashlib.sha256(data).hexdigest(),
        mtime_ns=status.st_mtime_ns,
        mode=stat.S_IMODE(status.st_mode),
        eol=_dominant_eol(raw),
        has_bom=data.startswith(codecs.BOM_UTF8),
    )


def is_generated(text: str) -> bool:
    """Whether the comments that a file begins with say that a tool wrote it."""
    comments = _FIRST_COMMENTS.match(text[:_HEAD_BYTES])
    return comments is not None and _SAYS_GENERATED.search(comments[0]) is not None


def _read(relative: str, path: Path, max_file_bytes: int) -> tuple[bytes, os.stat_result]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for somebody to write to it
            raise UnusableFileError(relative, "is not a regular file")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_HEAD_BYTES)
            if b"\0" not in data:
                data += file.read(max(max_file_bytes + 1 - len(data), 0))
    except OSError as error:
        raise UnusableFileError(relative, f"cannot be read: {error.strerror}") from None
    if b"\0" in data:
        raise UnusableFileError(relative, "is a binary file (it contains NUL bytes)")
    if len(data) > max_file_bytes:
        raise UnusableFileError(relative, f"is larger than {max_file_bytes:,} bytes")
    return data, status


def _dominant_eol(raw: str) -> str:
    num_crlf = raw.count("\r\n")
    counts = {"\n": raw.count("\n") - num_crlf, "\r\n": num_crlf, "\r": raw.count("\r") - num_crlf}
    return max(counts, key=lambda eol: counts[eol])
