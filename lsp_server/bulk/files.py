"""Fills put into a file as it is on the disk, and files replaced at once. Bytes outside holes stay as they are.

``SourceText.text`` has other line ends than the file and no byte order mark; this is where both meet again.
"""

import hashlib
import os
import re
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import SourceText
from lsp_server.bulk.partial import partial_file
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

    An existing file's owner, permissions and attributes are kept, or it is not replaced; other names of it (hard links)
    keep the old content, and a symbolic link is not followed. ``last_check`` is called when all is ready and may raise.
    Raises ``OSError``.
    """
    is_new = not path.exists()
    with partial_file(path, 0o666 if is_new else 0o600) as partial:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not is_new:
            _copy_attributes(path, partial)
        last_check()
        os.replace(partial, path)


def _copy_attributes(path: Path, partial: Path) -> None:
    """All but the times: the content is new."""
    if hasattr(os, "chown"):
        _copy_owner(path, partial)
    shutil.copystat(path, partial)
    os.utime(partial)


def _copy_owner(path: Path, partial: Path) -> None:
    """A file that changed hands could shut its owner or group out."""
    old, new = path.stat(), partial.stat()
    if (old.st_uid, old.st_gid) == (new.st_uid, new.st_gid):
        return  # nothing to ask of a file system that may know no owners
    try:
        os.chown(partial, old.st_uid, old.st_gid)
    except OSError as error:
        whose = "owner" if old.st_uid != new.st_uid else "group"
        reason = f"its {whose} would be another; run the command as somebody who can keep it"
        raise PermissionError(error.errno, reason) from None
