"""Errors of the language server and the command line. All are ``MidlineError``: one line for a user.

``UsageError`` is what was typed wrong on the command line; it ends a command with exit code 2.
"""

from engine.errors import MidlineError


class UsageError(MidlineError):
    """A command-line argument that cannot be used: a missing file, a position outside it."""
