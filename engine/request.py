"""What is asked of the engine and what comes back, as plain data. Light: imports no torch."""

from dataclasses import dataclass, field
from enum import Enum

from engine.errors import RequestError
from engine.literals import FAMILIES


class Lane(str, Enum):
    """Whether anyone is waiting."""

    INTERACTIVE = "interactive"
    """A person: runs at once."""
    BULK = "bulk"
    """Nobody: fills the time that is left, and never less than a small share of it."""


class FinishReason(str, Enum):
    """Why a completion ended. The values are those of the OpenAI API where it has one."""

    STOP = "stop"
    """An end-of-sequence token or a stop string."""
    LENGTH = "length"
    """``max_tokens``, or the context is full."""
    REPETITION = "repetition"
    """The text ran in circles, and ``stop_repetition`` was asked for."""
    TIME = "time"
    """``time_limit_ms`` had passed when a line was complete."""
    CANCELLED = "cancelled"
    """The client went away or asked to stop."""
    SUPERSEDED = "superseded"
    """A newer request of the same session took its place."""
    EXPIRED = "expired"
    """``deadline_ms`` had passed before it could begin."""
    FAILED = "failed"
    """Something broke; whoever asked gets the exception instead of an answer."""


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when to stop."""

    max_tokens: int = 64
    """Most tokens of new text; tokens that only repeat what stands before the cursor do not count. 0 only computes
    the prompt, so that it is cached."""
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps all tokens."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest one's probability are left out."""
    seed: int | None = None
    """The same seed gives the same text, whatever else is computed at the time; None draws one."""
    ignore_eos: bool = False
    """Go on to ``max_tokens`` whatever the model wants; for measuring."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of these; it is never part of the answer."""
    time_limit_ms: float | None = None
    """Generation ends at the first line end after this time; a line is never cut."""
    min_indent: int = 0
    """Generation ends at the first non-blank line indented less than this many columns; 0 is off."""
    outdented: str = ""
    """A line that begins with this ends nothing, however it is indented: ``#`` where lines are for a preprocessor."""
    has_labels: bool = False
    """A label alone on its line ends nothing either, if what follows it does not: those of C stand in the first
    column."""
    literals: str = ""
    """A family of ``engine.literals``: a line that begins inside a string of its languages ends nothing. The text must
    not begin inside one. Empty: no string goes over lines."""
    stop_repetition: bool = False
    """Generation ends where the text runs in circles; see ``engine.repetition``."""

    def __post_init__(self) -> None:
        _check("max_tokens", self.max_tokens, self.max_tokens >= 0, "at least 0")
        _check("temperature", self.temperature, 0.0 <= self.temperature <= 10.0, "between 0 and 10")
        _check("top_k", self.top_k, self.top_k >= 0, "at least 0")
        _check("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0 and at most 1")
        _check("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "between 0 and 1")
        limit = self.time_limit_ms
        _check("time_limit_ms", limit, limit is None or limit >= 0.0, "at least 0, or absent")
        _check("min_indent", self.min_indent, self.min_indent >= 0, "at least 0")
        known = f"one of {', '.join(FAMILIES)}, or empty"
        _check("literals", self.literals, not self.literals or self.literals in FAMILIES, known)
        _check("stop", self.stop, all(self.stop), "a list of non-empty strings")


def _check(name: str, value: object, is_valid: bool, rule: str) -> None:
    if not is_valid:
        raise RequestError(f"{name} is {value!r}; it must be {rule}")


@dataclass(frozen=True)
class FileContext:
    """Another file's text that is shown to the model before the one being completed."""

    path: str
    text: str


@dataclass(frozen=True)
class CompletionRequest:
    """One completion: the text before the cursor, the text after it, and how to sample.

    ``suffix=None`` continues ``prefix`` left to right without any fill-in-the-middle marker.
    """

    prefix: str
    suffix: str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    extra: tuple[FileContext, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    """The prompt in tokens; ``prefix``, ``suffix`` and ``extra`` do not matter then."""
    lane: Lane = Lane.INTERACTIVE
    session: str = ""
    """Names what is being typed into, such as a buffer: a newer request of the same session supersedes this one."""
    deadline_ms: float | None = None
    """If it has not begun so long after its arrival, it is dropped with ``EXPIRED``."""
    draft: str = ""
    """What probably comes next, such as the rest of an earlier answer. Only makes it faster: the text is verified."""
    corpus: tuple[str, ...] = ()
    """Texts that the answer may repeat, such as other open files, the likeliest last. They only make it faster."""
    anchor: int | None = None
    """How many characters of ``prefix`` come before the anchor. What lies between it and the cursor, the typed
    segment, stands last in the prompt where the model's format allows it, so that with the same anchor and suffix
    typing only appends. None is the start of the cursor's line. Without ``suffix`` it does not matter."""
    use_cache: bool = True
    """False: nothing that was computed before is used, and nothing of this is kept; for measuring."""
    heal: bool = True
    """False: the text before the cursor is fed as it is, also an end that is tokenised differently once more
    follows; for measuring."""
    use_drafts: bool = True
    """False: one token after the other, whatever ``draft`` says; for measuring."""

    def __post_init__(self) -> None:
        limit = self.deadline_ms
        _check("deadline_ms", limit, limit is None or limit > 0.0, "above 0, or absent")
        anchor, length = self.anchor, len(self.prefix)
        _check("anchor", anchor, anchor is None or 0 <= anchor <= length, f"between 0 and {length}, or absent")


@dataclass(frozen=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those whose keys and values were already there."""
    generated_tokens: int = 0
    drafted_tokens: int = 0
    """Tokens that were computed on the guess that they would come."""
    accepted_tokens: int = 0
    """Of those, the ones that did come."""


@dataclass(frozen=True)
class Timing:
    """Wall-clock times of one request in milliseconds, counted from its arrival."""

    queue_ms: float = 0.0
    first_token_ms: float | None = None
    total_ms: float = 0.0


@dataclass(frozen=True)
class Finished:
    """The last event of a request."""

    reason: FinishReason
    usage: Usage
    timing: Timing
    stop_string: str = ""
    """The stop string that ended the text; empty for an end-of-sequence token and other reasons."""
    mean_logprob: float | None = None
    """Mean natural logarithm of the probability that the model gave to the answer's tokens; None without any."""


@dataclass(frozen=True)
class Delta:
    """An event of a running request: new text, and on the last one why it ended."""

    text: str
    token_ids: tuple[int, ...] = ()
    finished: Finished | None = None
    usage: Usage = field(default_factory=Usage)
    """Counts so far: a reader that stops early knows them as well."""
