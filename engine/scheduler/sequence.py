"""One request as the scheduler sees it: two counters, and the blocks it holds. Light: imports no torch."""

from dataclasses import dataclass, field

from engine.cache.kv_cache import BlockTable
from engine.request import FinishReason, Lane


@dataclass(eq=False)
class Sequence:
    """Tokens, how many of them are computed, and what the request may still ask for.

    Prefill, chunks, cache hits and drafts are all the distance between ``num_computed`` and ``len(token_ids)``.
    """

    token_ids: list[int]
    """The prompt and what has been generated; the last generated token is not computed yet."""
    max_tokens: int
    """Most tokens of prompt and answer together: what is reserved."""
    lane: Lane = Lane.INTERACTIVE
    deadline_s: float | None = None
    """Not begun by then, the request is dropped. On the clock of ``Scheduler.expire``."""
    session: str = ""
    """A newer request of the same session supersedes this one."""
    use_cache: bool = True
    """False: it takes nothing from the cache and leaves nothing there."""

    num_prompt_tokens: int = field(init=False)
    num_computed: int = field(init=False, default=0)
    num_cached: int = field(init=False, default=0)
    table: BlockTable | None = field(init=False, default=None)
    end_reason: FinishReason | None = field(init=False, default=None)
    is_in_flight: bool = field(init=False, default=False)
    """A forward pass may write into its blocks."""
    successor: "Sequence | None" = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def heir(self) -> "Sequence | None":
        """The last in the line of those that took its place: who types on supersedes one request after the other."""
        heir = self.successor
        while heir is not None and heir.successor is not None:
            heir = heir.successor
        return heir

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not computed."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Only the newest token is left to compute."""
        return self.num_pending == 1


@dataclass(frozen=True)
class Load:
    """What a pass computes anyway, when drafts of one of its sequences are thought of."""

    num_rows: int = 1
    num_sequences: int = 1
    """Requests that run: about so many rows has a pass without drafts once all prompts are computed."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """The part of a sequence that a forward pass computes."""

    sequence: Sequence
    start: int
    """Position of its first token."""
    token_ids: list[int]
    """Pending tokens, then drafts."""
    num_drafts: int = 0
    is_sampled: bool = False
    """Whether it ends with the newest token, so that the next one can be chosen."""

    @property
    def end(self) -> int:
        """Position behind its last token."""
        return self.start + len(self.token_ids)

    @property
    def num_logits(self) -> int:
        """Rows, counted from the end, whose logits are wanted."""
        return 1 + self.num_drafts if self.is_sampled else 0


@dataclass(frozen=True)
class Plan:
    """What one forward pass computes; all of it belongs to one lane."""

    lane: Lane
    chunks: tuple[Chunk, ...]

    @property
    def num_rows(self) -> int:
        """Tokens that are computed."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)
