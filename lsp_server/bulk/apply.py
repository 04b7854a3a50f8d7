"""Writes fills into the user's files, and takes them back. Every file is replaced at once or left as it is.

A file that is not as it was when its holes were selected is never written. Before the first write a file is kept in
the state folder, so that fills can be taken back one by one, and by the user later.
"""

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from engine.paths import state_dir
from lsp_server.bulk.files import by_file, digest_of, filled_in, read_original, replace_file
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import SourceText
from lsp_server.errors import FileConflictError

_MAX_KEPT_RUNS = 20
_MAY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class FileState(str, Enum):
    """What became of a file."""

    WRITTEN = "written"
    UNCHANGED = "unchanged"
    """There was nothing to write."""
    CONFLICT = "conflict"
    """It was changed or deleted by somebody else; nothing was written."""
    FAILED = "failed"
    """It cannot be written: read-only, no room, no permission."""


@dataclass(frozen=True)
class FileOutcome:
    """What became of one file, and why it was not written."""

    relative: str
    state: FileState
    num_fills: int
    """Good ones for this file, whether they could be written or not."""
    reason: str = ""
    """One line that names the file; empty if all went well."""


class Backups:
    """The files of one run as they were, in a folder that is made with the first of them."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._written: dict[Path, str] = {}
        """Digests of what this run has written."""

    @property
    def hint(self) -> str:
        """How the user goes back; empty if nothing was written."""
        return f"to undo, copy {self.folder} over the workspace" if self._written else ""

    def original(self, source: SourceText) -> bytes:
        """The file as it was selected, also after this run has written it.

        Raises ``FileConflictError`` if somebody else has changed it, ``OSError`` if it cannot be read.
        """
        written = self._written.get(source.path)
        if self.folder is not None and written is not None and digest_of(source.path.read_bytes()) == written:
            return read_original(replace(source, path=self.folder / source.relative))
        return read_original(source)

    def keep(self, source: SourceText, original: bytes) -> None:
        """Keep a file that is about to be written. Raises ``OSError``."""
        if self.folder is None:
            self.folder = _new_folder()
        path = self.folder / source.relative
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            replace_file(path, original)

    def note_written(self, source: SourceText, content: bytes) -> None:
        """Tell a file that has just been written from one that somebody else has changed."""
        self._written[source.path] = digest_of(content)


def apply(fills: Sequence[Fill], backups: Backups) -> list[FileOutcome]:
    """Make every file what it was when it was selected, with its good fills; in the order of the files.

    Called again with some of the fills reverted, it takes these back. Problems are outcomes; nothing is raised.
    """
    return [_apply_to_file(of_file, backups) for of_file in by_file(fills)]


def _apply_to_file(fills: list[Fill], backups: Backups) -> FileOutcome:
    source = fills[0].hole.source
    num_fills = sum(fill.state is FillState.FILLED for fill in fills)
    try:
        state = _write(source, fills, backups)
        return FileOutcome(source.relative, state, num_fills)
    except FileConflictError as error:
        return FileOutcome(source.relative, FileState.CONFLICT, num_fills, str(error))
    except FileNotFoundError:
        return FileOutcome(source.relative, FileState.CONFLICT, num_fills, f"{source.relative} was deleted meanwhile")
    except OSError as error:
        reason = f"cannot write {source.relative}: {error.strerror or error}"
        return FileOutcome(source.relative, FileState.FAILED, num_fills, reason)


def _write(source: SourceText, fills: list[Fill], backups: Backups) -> FileState:
    target = Path(os.path.realpath(source.path))  # a link stays a link
    original = backups.original(source)
    present, content = target.read_bytes(), filled_in(original, fills)
    if content == present:
        return FileState.UNCHANGED
    if not target.stat().st_mode & _MAY_WRITE or not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "it is read-only")

    def check_again() -> None:
        if target.read_bytes() != present:
            raise FileConflictError(f"{source.relative} was changed at this moment; run the command again")

    backups.keep(source, original)
    replace_file(target, content, check_again)
    backups.note_written(source, content)
    return FileState.WRITTEN


def _new_folder() -> Path:
    """A folder that only the user may enter; the oldest ones go."""
    folder = state_dir() / "bulk" / "backups"
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.iterdir())[: -_MAX_KEPT_RUNS + 1]:
        shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=time.strftime("%Y-%m-%d-%H%M%S-"), dir=folder))
