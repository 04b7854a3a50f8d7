"""Errors of the language server and the command line. All are ``MidlineError``: one line for a user.

``UsageError`` is what was typed wrong on the command line; it ends a command with exit code 2.
"""

from engine.errors import MidlineError


class UsageError(MidlineError):
    """A command-line argument that cannot be used: a missing file, a position outside it."""


class JournalError(MidlineError):
    """A journal of a bulk run that cannot be read or written."""


class JournalInUseError(JournalError):
    """Another run has the journal."""


class FileConflictError(MidlineError):
    """A file is not as it was when its holes were selected."""


class OutputError(MidlineError):
    """A result that cannot be written where it should go."""


class CheckError(MidlineError):
    """The user's own check fails before anything was changed."""


class UnusableFileError(MidlineError):
    """A file that cannot be completed: unreadable, binary, huge, not UTF-8. ``reason`` does not name the file."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} {reason}")
        self.reason = reason
