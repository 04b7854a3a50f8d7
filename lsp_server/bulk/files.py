"""Fills put into a file as it is on the disk, and files replaced at once. Bytes outside holes stay as they are.

``SourceText.text`` has other line ends than the file and no byte order mark; this is where both meet again.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import SourceText
from lsp_server.errors import FileConflictError

_BOM = "\ufeff"


@dataclass(frozen=True)
class Splice:
    """``start`` to ``end``, in characters of the file's whole text, become ``text``."""

    start: int
    end: int
    text: str


def by_file(fills: Iterable[Fill]) -> list[list[Fill]]:
    """Fills of one file together, in the order in which the files come first."""
    files: dict[Path, list[Fill]] = {}
    for fill in fills:
        files.setdefault(fill.hole.source.path, []).append(fill)
    return list(files.values())


def read_original(source: SourceText) -> bytes:
    """The file as it was selected.

    Raises ``FileConflictError`` if it is another now, ``OSError`` if it cannot be read.
    """
    try:
        content = source.path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise FileConflictError(f"{source.relative} was deleted since its holes were selected") from None
    if digest_of(content) != source.digest:
        raise FileConflictError(f"{source.relative} has changed since its holes were selected; run the command again")
    return content


def digest_of(content: bytes) -> str:
    """As in ``SourceText.digest``."""
    return hashlib.sha256(content).hexdigest()


def splices(original: str, fills: Sequence[Fill]) -> list[Splice]:
    """What the good fills change in a file's whole text, from top to bottom."""
    source = fills[0].hole.source
    num_bom = len(_BOM) if source.has_bom else 0
    # Where the text's "\n" were "\r\n". A hole's end in front of one stays in front of both characters.
    wide = [match.start() - num_bom - index for index, match in enumerate(re.finditer("\r\n", original))]

    def at(offset: int) -> int:
        return num_bom + offset + bisect_left(wide, offset)

    good = [fill for fill in fills if fill.state is FillState.FILLED]
    good.sort(key=lambda fill: (fill.hole.start, fill.hole.end))
    return [
        Splice(at(fill.hole.start), at(fill.hole.end), replacement(fill).replace("\n", source.eol)) for fill in good
    ]


def replacement(fill: Fill) -> str:
    """What takes the hole's place; LF line ends."""
    return fill.hole.before_fill + fill.text + fill.hole.after_fill


def filled_in(original: bytes, fills: Sequence[Fill]) -> bytes:
    """A file's bytes with its good fills."""
    text, pieces, end = original.decode(), [], 0
    for splice in splices(text, fills):
        pieces += [text[end : splice.start], splice.text]
        end = splice.end
    return "".join([*pieces, text[end:]]).encode()


def replace_file(path: Path, content: bytes, last_check: Callable[[], None] = lambda: None) -> None:
    """Write a file so that at any time either the old or the new one is there, whole; and on an error the old one.

    An existing file's permissions and attributes are kept; other names of it (hard links) keep the old content, and
    a symbolic link is not followed. ``last_check`` is called when all is ready and may raise. Raises ``OSError``.
    """
    stem = f".midline-{digest_of(os.fsencode(path.name))[:12]}-"
    for left in path.parent.glob(f"{stem}*"):  # by a process that was killed
        left.unlink(missing_ok=True)
    partial = path.with_name(stem + secrets.token_hex(4))  # in the same folder: a rename is atomic only there
    is_new = not path.exists()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if is_new else 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not is_new:
            _copy_attributes(path, partial)
        last_check()
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _copy_attributes(path: Path, partial: Path) -> None:
    """All but the times: the content is new."""
    if hasattr(os, "chown"):
        status = path.stat()
        with contextlib.suppress(PermissionError):  # somebody else's file
            os.chown(partial, status.st_uid, status.st_gid)
    shutil.copystat(path, partial)
    os.utime(partial)
