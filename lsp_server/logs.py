"""Logging to stderr. Code from the user's buffers is written at ``trace`` alone, which is off by default.

Exception texts can quote a buffer too; ``log_failure`` therefore names kind and place, and keeps the rest for trace.
"""

import logging
import sys
import traceback

from lsp_server.errors import UsageError

TRACE = 5
_LEVELS = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": TRACE,
}


def set_up_logging(level_name: str) -> None:
    """Send all logs to stderr. Raises ``UsageError`` for an unknown level."""
    if level_name not in _LEVELS:
        raise UsageError(f"--log-level {level_name} is unknown; use one of {', '.join(_LEVELS)}")
    logging.addLevelName(TRACE, "TRACE")
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,  # libraries log message bodies at info and below
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    logging.getLogger("lsp_server").setLevel(_LEVELS[level_name])
    # pygls logs parameters of failed handlers at error; lsp_server.protocol logs these failures without them.
    logging.getLogger("pygls.protocol.json_rpc").setLevel(logging.CRITICAL)


def log_failure(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log an internal error by its kind and place; its text and traceback at trace."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    logger.error("%s failed: %s%s", what, type(error).__name__, place)
    logger.log(TRACE, "%s failed", what, exc_info=error)
