"""What becomes of a hole, as plain data: the common language of run, journal, verification and output."""

from dataclasses import dataclass, field
from enum import Enum

from engine.request import Usage
from lsp_server.bulk.holes import Hole


class FillState(str, Enum):
    """How it ended."""

    FILLED = "filled"
    FAILED = "failed"
    """No usable fill after the second attempt; ``reason`` says why."""
    REVERTED = "reverted"
    """It was good by itself, but the user's own check broke with it."""


@dataclass(frozen=True)
class Fill:
    """The outcome for one hole."""

    hole: Hole
    state: FillState
    text: str = ""
    """What goes between ``hole.before_fill`` and ``hole.after_fill``; LF line ends."""
    reason: str = ""
    """One line; empty when filled."""
    key: str = ""
    """Of the request that it came from; equal for equal requests."""
    usage: Usage = field(default_factory=Usage)
    mean_logprob: float | None = None
    num_attempts: int = 1
    is_from_journal: bool = False
