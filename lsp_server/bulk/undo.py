"""Makes writing many files one step: until all are written, a log holds how those were that are.

A run that was killed while it wrote leaves its log. The next one on the same journal puts the files back, finds all
answers in the journal and writes again, so that the end is the same.
"""

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lsp_server.bulk.apply import Backups, FileOutcome, apply
from lsp_server.bulk.files import by_file, digest_of, filled_in, read_original, replace_file
from lsp_server.bulk.fills import Fill
from lsp_server.errors import FileConflictError


def log_path(journal: Path) -> Path:
    """The log beside a journal."""
    return journal.with_name(journal.name + ".undo")


@contextmanager
def one_step(log: Path, say: Callable[[str], None]) -> "Iterator[Step]":
    """A step to write in. Leaving the context with an error, an interrupt too, takes back whatever was written.

    ``say`` gets a line for each file that is then not put back. Hold the journal meanwhile: its lock is the log's as
    well. Raises ``OSError`` if the log cannot be written.
    """
    try:
        yield Step(log)
    except BaseException:
        for line in take_back(log).lines:
            say(line)
        raise
    log.unlink(missing_ok=True)


@dataclass(frozen=True)
class TakenBack:
    """What became of the files of an unfinished step."""

    num_files: int = 0
    """Put back; not those that were as they had been anyway."""
    changed: tuple[str, ...] = ()
    """One line for each file that somebody else has changed since: it stays."""
    problems: tuple[str, ...] = ()
    """One line for each file that cannot be put back yet: the log is kept for it."""

    @property
    def lines(self) -> tuple[str, ...]:
        """What is to be said."""
        return (*self.changed, *self.problems)


def take_back(log: Path) -> TakenBack:
    """Put the files of an unfinished step back, all that can be. Problems with files are told; nothing is raised."""
    num_files, changed, problems = 0, list[str](), list[str]()
    try:
        for path, (original, digests) in _read(log).items():
            try:
                present = path.read_bytes() if path.is_file() else original
                if present != original and digest_of(present) in digests:
                    replace_file(path, original)
                    num_files += 1
                elif present != original:
                    changed.append(f"{path} has changed since it was written; it stays as it is")
            except OSError as error:
                problems.append(f"cannot put {path} back: {error.strerror or error}; {_remedy(log)}")
        if not problems:
            log.unlink(missing_ok=True)
    except OSError as error:
        problems.append(f"cannot use {log}: {error.strerror or error}; {_remedy(log)}")
    return TakenBack(num_files, tuple(changed), tuple(problems))


def _remedy(log: Path) -> str:
    return f"mend that and run the command again, or delete {log} to leave all as it is"


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
    lines = log.read_text(encoding="ascii").split("\n")[:-1] if log.exists() else []
    for path, digest, content in map(json.loads, lines):
        written.setdefault(Path(path), (base64.b64decode(content), set()))[1].add(digest)
    return written


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
