"""The file in which new content waits to take the place of another. What a process that was killed left goes later.

Whoever writes such a file holds a lock on it, which ends with the process; where there are no such locks, the file's
age has to tell.
"""

import contextlib
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_MAX_WRITE_S = 3600.0


@contextlib.contextmanager
def partial_file(path: Path, mode: int) -> Iterator[Path]:
    """A new file in the folder of ``path``, as a rename is atomic only there. It is gone at the end, unless renamed.

    Raises ``OSError`` if it cannot be made.
    """
    stem = f".midline-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:12]}-"
    for left in path.parent.glob(f"{stem}*"):
        with contextlib.suppress(OSError):
            _remove_if_left(left)
    partial, descriptor = _create(path.with_name(stem), mode)
    try:
        yield partial
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        if descriptor is not None:
            os.close(descriptor)


def _create(stem: Path, mode: int) -> tuple[Path, int | None]:
    """A file of its own, and what holds its lock."""
    while True:
        partial = stem.with_name(stem.name + secrets.token_hex(4))
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        if sys.platform == "win32":
            os.close(descriptor)  # an open file cannot be renamed there
            return partial, None
        with contextlib.suppress(OSError):  # not on this file system: then nobody can lock it, or remove it
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return partial, descriptor
        os.close(descriptor)  # somebody took it for one that was left, before it was locked


def _remove_if_left(partial: Path) -> None:
    """Raises ``OSError`` if somebody is writing it."""
    if sys.platform == "win32":
        if time.time() - partial.stat().st_ctime > _MAX_WRITE_S:
            partial.unlink()
        return
    with partial.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.unlink()
