"""What every source of model files needs: locks, disk space, hashes and the atomic end of a download. Light.

Knows no network. Unfinished files lie in a ``.partial`` folder beside their target, on the same file system,
named after the hash they must have, so that a download can only be resumed into the same content.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from filelock import FileLock, Timeout

from engine.errors import DownloadError

if TYPE_CHECKING:
    from hashlib import _Hash

CHUNK_BYTES = 1 << 20
PARTIAL_DIR = ".partial"

ByteReport = Callable[[int], None]
"""Called with the number of bytes of one file that are on disk so far."""


class ProgressSink(Protocol):
    """Where a download tells how far it is. Called from one thread, about ten times a second."""

    def stage(self, text: str) -> None:
        """Say what happens now; a byte count of an earlier stage is over."""

    def update(self, done_bytes: int, total_bytes: int) -> None:
        """Say how much of the current stage is done."""

    def note(self, text: str) -> None:
        """Say one line that should stay readable, such as a change of source."""


@dataclass(frozen=True)
class ExpectedFile:
    """What a downloaded file must be."""

    size_bytes: int
    algorithm: str
    """``sha256``, or ``git-sha1``: git's hash of a blob, which the hub gives for its small files."""
    hexdigest: str

    @property
    def digest(self) -> str:
        """Algorithm and hash in one string, as records keep it."""
        return f"{self.algorithm}:{self.hexdigest}"

    def new_hash(self) -> "_Hash":
        """A hash object to feed the file's bytes to."""
        if self.algorithm == "sha256":
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)


def format_bytes(num_bytes: int) -> str:
    """Decimal units with three digits, for people: ``491 MB``."""
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    digits = 0 if value >= 100 or unit == "B" else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def partial_path(target: Path, expected: ExpectedFile) -> Path:
    """Where the bytes of ``target`` grow until they are complete and verified."""
    return target.parent / PARTIAL_DIR / f"{target.name}-{expected.hexdigest[:12]}"


def find_partials(target: Path) -> list[Path]:
    """All unfinished downloads of ``target``: files and folders."""
    prefix = f"{target.name}-"
    folder = target.parent / PARTIAL_DIR
    return [path for path in folder.iterdir() if path.name.startswith(prefix)] if folder.is_dir() else []


@contextmanager
def download_lock(lock_path: Path, name: str, progress: ProgressSink | None = None) -> Iterator[None]:
    """Hold the model ``name`` for one process.

    With a sink, waits for the other process and says so; without one, raises DownloadError if there is one.
    """
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_path, timeout=-1 if progress else 0)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress is None:
            raise DownloadError(f"{name} is being downloaded by another process; stop that one first") from None
        progress.stage(f"waiting for another process that downloads {name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def require_free_disk(folder: Path, needed_bytes: int, name: str) -> None:
    """Raise DownloadError with both numbers unless ``folder``'s disk has room for ``needed_bytes`` more."""
    if _free_bytes(folder) < needed_bytes:
        raise disk_full_error(folder, needed_bytes, name)


def disk_full_error(folder: Path, needed_bytes: int, name: str) -> DownloadError:
    """The error for a disk that is full or would be: says what is needed and what is free."""
    return DownloadError(
        f"not enough disk space for {name} in {folder}: {format_bytes(needed_bytes)} needed, "
        f"{format_bytes(_free_bytes(folder))} free; free some or set MIDLINE_CACHE_DIR to a larger disk"
    )


def _free_bytes(folder: Path) -> int:
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free


@contextmanager
def disk_errors(folder: Path, name: str, needed_bytes: Callable[[], int]) -> Iterator[None]:
    """Turn the system's errors while writing to ``folder`` (full, read-only, not ours) into DownloadError.

    ``needed_bytes`` tells how much is still missing when the disk turns out full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full_error(folder, needed_bytes(), name) from error
        raise DownloadError(f"cannot store {name} in {folder} ({error}); set MIDLINE_CACHE_DIR") from error


def feed_hash(hasher: "_Hash", path: Path, num_bytes: int) -> None:
    """Feed the first ``num_bytes`` of ``path`` to ``hasher``."""
    with path.open("rb") as file:
        while num_bytes and (chunk := file.read(min(CHUNK_BYTES, num_bytes))):
            hasher.update(chunk)
            num_bytes -= len(chunk)


def is_verified(path: Path, expected: ExpectedFile) -> bool:
    """Whether ``path`` exists with exactly the expected content. Reads it all."""
    if not path.is_file() or path.stat().st_size != expected.size_bytes:
        return False
    hasher = expected.new_hash()
    feed_hash(hasher, path, expected.size_bytes)
    return hasher.hexdigest() == expected.hexdigest


def commit(partial: Path, target: Path, expected: ExpectedFile, actual_hexdigest: str) -> None:
    """Move a complete, synced ``partial`` to ``target`` if its hash is right; else delete it and raise."""
    if actual_hexdigest != expected.hexdigest:
        partial.unlink()
        raise DownloadError(
            f"checksum mismatch for {target.name}: expected {expected.digest}, got {actual_hexdigest}; "
            "the download was discarded, try again"
        )
    partial.replace(target)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there, and renames are journalled
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
