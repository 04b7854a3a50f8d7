"""Journals in the cache that nobody needs any more: those of workspaces in which no run has begun for 30 days.

A journal that somebody has named is a file of theirs and stays where it is.
"""

import contextlib
import time
from pathlib import Path

import filelock

from engine.paths import cache_dir
from lsp_server.bulk.journal import lock_of
from lsp_server.bulk.undo import log_path

_MAX_UNUSED_S = 30 * 24 * 3600.0


def remove_old_journals() -> None:
    """Remove them, but none that is open, or that has a log beside it of files which are still to be put back.

    Open one's own first. The locks stay: somebody might have one in hand that nobody else would see any more. Whatever
    goes wrong is left for another time.
    """
    for path in (cache_dir() / "bulk").glob("*.jsonl"):
        with contextlib.suppress(OSError, filelock.Timeout):
            if _is_old(path):
                with lock_of(path):
                    if _is_old(path):  # still: it may have been opened and closed meanwhile
                        path.unlink()


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _MAX_UNUSED_S and not log_path(path).exists()
