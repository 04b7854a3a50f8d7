"""What the pipeline is asked and what it answers, as plain data."""

from dataclasses import dataclass, field
from enum import Enum

from engine.request import Timing, Usage


class EmptyReason(str, Enum):
    """Why there is no suggestion. Every empty answer has one."""

    DISABLED = "disabled"
    MODEL_LOADING = "model_loading"
    MODEL_MISSING = "model_missing"
    SERVICE_UNAVAILABLE = "service_unavailable"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    DOCUMENT_CHANGED = "document_changed"
    DOCUMENT_CLOSED = "document_closed"
    LINE_TOO_LONG = "line_too_long"
    EMPTY_DOCUMENT = "empty_document"
    MID_LINE = "mid_line"
    NOTHING_GENERATED = "nothing_generated"
    DUPLICATES_SUFFIX = "duplicates_suffix"
    REPETITION = "repetition"


class Source(str, Enum):
    """Where a suggestion comes from."""

    NONE = "none"
    MODEL = "model"
    """A request of its own."""
    RUNNING = "running"
    """A generation that ran already, and agrees with what has been typed since."""
    TYPED = "typed"
    """What is left of an answer whose beginning has been typed: no model is asked."""


@dataclass(frozen=True)
class Situation:
    """A cursor in a document, in LF-normalised text. Offsets are in characters (code points)."""

    prefix: str
    suffix: str
    language_id: str = ""
    path: str = ""
    is_explicit: bool = False
    """True when the user asked by hand: no debounce, no mid-line gate."""
    other_texts: tuple[str, ...] = ()
    """Of the other open documents, the least recent first: what is written here may stand there already."""

    @property
    def line_prefix(self) -> str:
        """Text of the cursor's line before the cursor."""
        return self.prefix[self.prefix.rfind("\n") + 1 :]

    @property
    def line_suffix(self) -> str:
        """Text of the cursor's line after the cursor."""
        end = self.suffix.find("\n")
        return self.suffix if end < 0 else self.suffix[:end]


@dataclass(frozen=True)
class Overlay:
    """A longer form of a suggestion that also replaces the closing brackets after the cursor."""

    text: str
    num_replaced_chars: int
    """Characters after the cursor, all ASCII."""


@dataclass(frozen=True)
class Suggestion:
    """The pipeline's answer: text to insert at the cursor, or the reason why there is none."""

    text: str
    reason: EmptyReason | None = None
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    timing: Timing = field(default_factory=Timing)
    overlay: Overlay | None = None
    """For editors that can draw it instead of ``text``."""
    source: Source = Source.NONE
    is_reanchored: bool = False
    """The prompt was divided anew, so that what follows the anchor had to be computed again."""
