"""The answers of the model, kept in a file so that a run that was stopped goes on where it was.

One JSON object a line; the first says the format. Lines are only ever appended. Nothing here knows holes or models:
an answer is found by the key of its request. The file holds the user's code, so that only the user may read it.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

import cattrs
import filelock

from engine.paths import cache_dir
from engine.request import Usage
from lsp_server.errors import JournalError, JournalInUseError

_HEADER = b'{"midline_journal": 1}\n'
_ANY_HEADER = re.compile(rb'\{"midline_journal": (\d+)\}\n')
_SYNC_EVERY_S = 1.0
_CONVERTER = cattrs.Converter(forbid_extra_keys=True)


@dataclass(frozen=True)
class Record:
    """An answer."""

    key: str
    """Of its request; see ``requests.key_of``."""
    text: str
    """As the model said it."""
    reason: str = ""
    """``FinishReason``"""
    usage: Usage = field(default_factory=Usage)
    mean_logprob: float | None = None
    attempt: int = 1


def default_path(root: Path) -> Path:
    """The journal of a workspace, in the cache."""
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:12]
    return cache_dir() / "bulk" / f"{digest}.jsonl"


def lock_of(path: Path) -> filelock.FileLock:
    """Whoever holds it may write the journal; raises ``filelock.Timeout`` at once where another one does."""
    return filelock.FileLock(f"{path}.lock", timeout=0, mode=0o600, thread_local=False)


class Journal:
    """An open journal; a context manager. What ``add`` was given survives a kill at once, a power loss after a second.

    At most one is open for a file at any time, in all processes. A last line that is only half there is cut off when
    it is opened; what cannot be read before it is skipped, and counted in ``num_damaged``.
    """

    def __init__(self, path: Path, file: io.FileIO, lock: filelock.BaseFileLock) -> None:
        self.num_damaged = 0
        self.path = path
        self._file = file
        self._lock = lock
        self._records: dict[str, Record] = {}
        self._failure = ""
        self._is_synced = True
        self._is_closing = threading.Event()
        self._syncer = threading.Thread(target=self._sync_regularly, name="journal", daemon=True)

    @classmethod
    def open(cls, path: Path) -> "Journal":
        """Read what is there; the file and its folder are made if they do not exist.

        Raises ``JournalInUseError``, and ``JournalError`` for a file that is no journal or cannot be written.
        """
        path = Path(os.path.realpath(path))  # one lock, whatever name the file is given
        if path.exists() and not path.is_file():
            raise JournalError(f"the journal {path} is not a regular file; name another journal")
        lock = lock_of(path)
        with contextlib.ExitStack() as stack, _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _acquire(lock, path)
            stack.callback(lock.release)
            file = stack.enter_context(open(path, "a+b", buffering=0, opener=_open_private))
            journal = cls(path, file, lock)
            journal._read()
            os.utime(path)  # it is in use, though maybe nothing will be added; see ``old_journals``
            stack.pop_all()
        journal._syncer.start()
        return journal

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> Record | None:
        """The latest record of this key."""
        return self._records.get(key)

    def add(self, record: Record) -> None:
        """Append a record. Raises ``JournalError`` if it cannot be written; the journal takes no more after that."""
        if self._failure:
            raise JournalError(self._failure)
        try:
            self._append(json.dumps(asdict(record)).encode() + b"\n")
        except OSError as error:
            self._failure = _explain(self.path, error)
            raise JournalError(self._failure) from None
        self._records[record.key] = record

    def close(self) -> None:
        """Bring everything to the disk and let others use the file. Raises ``JournalError`` if that fails."""
        if self._file.closed:
            return
        self._is_closing.set()
        self._syncer.join()
        try:
            with _explained(self.path), self._file:
                self._sync()
        finally:
            self._lock.release()
        if self._failure:
            raise JournalError(self._failure)

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.readall()
        if _HEADER.startswith(content):  # empty, or killed while it was written
            self._file.truncate(0)
            self._append(_HEADER)
            return
        _check_header(self.path, content)
        num_whole_bytes = content.rfind(b"\n") + 1
        if num_whole_bytes < len(content):
            self._file.truncate(num_whole_bytes)
        for line in content[len(_HEADER) : num_whole_bytes].split(b"\n")[:-1]:
            if record := _parse(line):
                self._records[record.key] = record
            else:
                self.num_damaged += 1

    def _append(self, line: bytes) -> None:
        """Write a whole line or, as far as that is in our power, nothing. Raises ``OSError``."""
        size_bytes = os.fstat(self._file.fileno()).st_size
        num_written_bytes = 0
        try:
            while num_written_bytes < len(line):
                num_written_bytes += self._file.write(line[num_written_bytes:]) or 0
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(size_bytes)
            raise
        finally:
            self._is_synced = False

    def _sync_regularly(self) -> None:
        """In a thread of its own: the disk may take its time, and no answer may come for a while."""
        while not self._is_closing.wait(_SYNC_EVERY_S):
            try:
                self._sync()
            except OSError as error:
                self._failure = _explain(self.path, error)
                return

    def _sync(self) -> None:
        if not self._is_synced:
            self._is_synced = True  # before it: what is written meanwhile may be left out
            os.fsync(self._file.fileno())


def _acquire(lock: filelock.BaseFileLock, path: Path) -> None:
    try:
        lock.acquire()
    except filelock.Timeout:
        raise JournalInUseError(
            f"the journal {path} is in use by another run; wait for it, or name another file with --journal"
        ) from None


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JournalError(_explain(path, error)) from None


def _explain(path: Path, error: OSError) -> str:
    return f"cannot use the journal {path}: {error.strerror or error}; make room for it, or name another journal"


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _check_header(path: Path, content: bytes) -> None:
    """Raises ``JournalError``: a file of the user's that is no journal is never touched."""
    match = _ANY_HEADER.match(content)
    if match is None:
        raise JournalError(f"{path} is not a journal of Midline; move it away, or name another journal")
    if match[0] != _HEADER:
        raise JournalError(
            f"the journal {path} is of another version of Midline (format {match[1].decode()}); "
            "move it away, or name another journal"
        )


def _parse(line: bytes) -> Record | None:
    """The record of a line; None for a damaged one."""
    try:
        return _CONVERTER.structure(json.loads(line), Record)
    except (ValueError, TypeError, AttributeError, RecursionError, cattrs.BaseValidationError):
        return None
