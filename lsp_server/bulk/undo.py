"""Makes writing many files one step: until all are written, a log holds how those were that are.

A run that was killed while it wrote leaves its log. The next one on the same journal puts the files back, finds all
answers in the journal and writes again, so that the end is the same.
"""

import base64
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lsp_server.bulk.apply import Backups, FileOutcome, apply
from lsp_server.bulk.files import by_file, digest_of, filled_in, read_original, replace_file
from lsp_server.bulk.fills import Fill
from lsp_server.errors import FileConflictError


def log_path(journal: Path) -> Path:
    """The log beside a journal."""
    return journal.with_name(journal.name + ".undo")


@contextmanager
def one_step(log: Path) -> "Iterator[Step]":
    """A step to write in. Leaving the context with an error, an interrupt too, takes back whatever was written.

    Hold the journal meanwhile: its lock is the log's as well. Raises ``OSError`` if the log cannot be written.
    """
    try:
        yield Step(log)
    except BaseException:
        take_back(log)
        raise
    log.unlink(missing_ok=True)


def take_back(log: Path) -> int:
    """Put the files of an unfinished step back, and return how many. Those that somebody else has changed stay."""
    num_files = 0
    for path, (original, digests) in _read(log).items():
        if path.is_file() and digest_of(path.read_bytes()) in digests:
            replace_file(path, original)
            num_files += 1
    log.unlink(missing_ok=True)
    return num_files


class Step:
    """Writes fills, again and again with others; says in the log before what is about to be written."""

    def __init__(self, log: Path) -> None:
        self.backups = Backups()
        self._log = log
        self._originals: dict[Path, bytes] = {}

    def write(self, fills: Sequence[Fill]) -> list[FileOutcome]:
        """See ``apply``."""
        lines = [line for of_file in by_file(fills) if (line := self._announced(of_file))]
        with open(self._log, "a", encoding="ascii", opener=_open_private) as file:
            file.write("".join(lines))
            file.flush()
            os.fsync(file.fileno())
        return apply(fills, self.backups)

    def _announced(self, fills: list[Fill]) -> str:
        source = fills[0].hole.source
        path = Path(os.path.realpath(source.path))
        with suppress(OSError, FileConflictError):  # it will not be written, and ``apply`` says why
            is_first = path not in self._originals
            if is_first:
                self._originals[path] = read_original(source)
            original = self._originals[path]
            content = base64.b64encode(original).decode() if is_first else ""
            return json.dumps([str(path), digest_of(filled_in(original, fills)), content]) + "\n"
        return ""


def _read(log: Path) -> dict[Path, tuple[bytes, set[str]]]:
    """By file: how it was, and the digests of what may have been written.

    What stands behind the last whole line was never begun.
    """
    written: dict[Path, tuple[bytes, set[str]]] = {}
    lines = log.read_text(encoding="ascii").split("\n")[:-1] if log.is_file() else []
    for path, digest, content in map(json.loads, lines):
        written.setdefault(Path(path), (base64.b64decode(content), set()))[1].add(digest)
    return written


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
