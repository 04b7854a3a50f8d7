"""Admission, batching and the end of requests. Light: imports no torch, runs no model.

A request is admitted when its prompt and all it may generate fit into the cache, so nothing that runs is ever
preempted for memory. Each lane has limits of its own; which lane computes is the loop's decision.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from engine.cache.kv_cache import KVCache
from engine.config import LaneLimits
from engine.request import FinishReason, Lane
from engine.scheduler.sequence import Chunk, Load, Plan, Sequence

_SMALL_SHARE = 0.5
"""A pass over fewer rows than this share of the budget has room to spare."""

ProposeDrafts = Callable[[Sequence, int, Load], list[int]]
"""Draft tokens for a sequence that decodes, at most so many, beside what the pass computes anyway."""


class Scheduler:
    """Owns every request from ``add`` to its end. Not safe for threads."""

    def __init__(self, cache: KVCache, limits: dict[Lane, LaneLimits]) -> None:
        self._cache = cache
        self._limits = limits
        # dictionaries as ordered sets: one of 10,000 waiting requests is cancelled without looking at the others
        self._waiting: dict[Lane, dict[Sequence, None]] = {lane: {} for lane in Lane}
        self._running: dict[Lane, dict[Sequence, None]] = {lane: {} for lane in Lane}
        self._by_session: dict[str, Sequence] = {}
        self._deadlines: dict[Sequence, float] = {}
        self._refused: Sequence | None = None  # the interactive request that there was no room for last

    def num_waiting(self, lane: Lane) -> int:
        """Requests that have not been admitted."""
        return len(self._waiting[lane])

    def num_running(self, lane: Lane) -> int:
        """Requests that hold blocks."""
        return len(self._running[lane])

    def has_work(self, lane: Lane) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting[lane] or self._running[lane])

    @property
    def lacks_room(self) -> bool:
        """Whether the first interactive request waits for blocks that others hold: what gets free is for it alone."""
        return self._refused in self._waiting[Lane.INTERACTIVE]

    @property
    def sequences(self) -> list[Sequence]:
        """Everything that has not ended."""
        groups = (*self._running.values(), *self._waiting.values())
        return [sequence for group in groups for sequence in group]

    @property
    def num_held_blocks(self) -> int:
        """Blocks of the cache that requests hold, also those that have ended in the middle of a pass."""
        return self._cache.num_used

    def add(self, sequence: Sequence) -> Sequence | None:
        """Queue a request; returns the one of its session that it has superseded, which is ended."""
        older = self._by_session.get(sequence.session) if sequence.session else None
        if older is not None:
            older.successor = sequence
            self.end(older, FinishReason.SUPERSEDED)
        self._waiting[sequence.lane][sequence] = None
        if sequence.deadline_s is not None:
            self._deadlines[sequence] = sequence.deadline_s
        if sequence.session:
            self._by_session[sequence.session] = sequence
        return older

    def expire(self, now_s: float) -> list[Sequence]:
        """End and return the waiting requests whose deadline has passed."""
        late = [sequence for sequence, deadline_s in self._deadlines.items() if deadline_s <= now_s]
        for sequence in late:
            self.end(sequence, FinishReason.EXPIRED)
        return late

    def plan(self, lane: Lane, propose: ProposeDrafts) -> Plan | None:
        """The next forward pass of a lane, or None when there is nothing to compute.

        First come those that decode, one token and its drafts each, then prompts in the order of arrival, the last
        of them cut where the budget ends. With ``prompts_first`` it is the other way round, and those that decode
        come along only where they make a small pass larger.
        """
        limits = self._limits[lane]
        budget = limits.max_batch_tokens
        running = [sequence for sequence in self._running[lane] if not sequence.is_in_flight]
        decoding = [sequence for sequence in running if sequence.is_decoding]
        if limits.prompts_first:
            chunks = self._prompt_chunks(lane, running, budget, 0, propose)
            num_rows = sum(len(chunk.token_ids) for chunk in chunks)
            if num_rows < budget * _SMALL_SHARE:
                chunks += self._decode_chunks(decoding, budget, num_rows, propose)
        else:
            chunks = self._decode_chunks(decoding, budget, 0, propose)
            num_rows = sum(len(chunk.token_ids) for chunk in chunks)
            chunks += self._prompt_chunks(lane, running, budget, num_rows, propose)
        for chunk in chunks:
            chunk.sequence.is_in_flight = True
        return Plan(lane, tuple(chunks)) if chunks else None

    def land(self, chunk: Chunk, num_accepted: int = 0, *, is_complete: bool = True) -> None:
        """A pass has let go of a chunk; ``is_complete`` says that every layer has written it.

        Of its drafts ``num_accepted`` count as computed. Blocks of a request that ended in the meantime are given
        back only now.
        """
        sequence = chunk.sequence
        sequence.is_in_flight = False
        if is_complete:
            sequence.num_computed = chunk.end - chunk.num_drafts + num_accepted
        if sequence.end_reason is not None:
            self._give_back(sequence)
        elif is_complete and sequence.table is not None:
            self._cache.publish(sequence.table, sequence.token_ids, sequence.num_computed)

    def end(self, sequence: Sequence, reason: FinishReason) -> bool:
        """End a request, whatever it is doing; False when it has ended before."""
        if sequence.end_reason is not None:
            return False
        sequence.end_reason = reason
        self._waiting[sequence.lane].pop(sequence, None)
        self._deadlines.pop(sequence, None)
        self._running[sequence.lane].pop(sequence, None)
        if self._by_session.get(sequence.session) is sequence:
            del self._by_session[sequence.session]
        if not sequence.is_in_flight:
            self._give_back(sequence)
        return True

    def _prompt_chunks(
        self, lane: Lane, running: list[Sequence], budget: int, num_rows: int, propose: ProposeDrafts
    ) -> list[Chunk]:
        """As many as there is room for beside ``num_rows``."""
        chunks: list[Chunk] = []
        prefilling = self._prefilling(lane, running)
        while num_rows < budget and (following := next(prefilling, None)) is not None:
            load = Load(num_rows, len(self._running[lane]))
            chunks.append(_chunk(following, budget - num_rows, load, propose))
            num_rows += len(chunks[-1].token_ids)
        return chunks

    def _decode_chunks(
        self, decoding: list[Sequence], budget: int, num_rows: int, propose: ProposeDrafts
    ) -> list[Chunk]:
        """As many as there is room for beside ``num_rows``; what is left beyond one token each is for drafts."""
        chunks: list[Chunk] = []
        decoding = decoding[: budget - num_rows]
        for num_others, sequence in zip(range(len(decoding) - 1, -1, -1), decoding, strict=True):
            load = Load(num_rows + num_others, len(self._running[sequence.lane]))
            chunks.append(_chunk(sequence, (budget - num_rows) // (num_others + 1), load, propose))
            num_rows += len(chunks[-1].token_ids)
        return chunks

    def _prefilling(self, lane: Lane, running: list[Sequence]) -> Iterator[Sequence]:
        """Running requests whose prompt is not computed, then those that can be admitted."""
        yield from (sequence for sequence in running if not sequence.is_decoding)
        if lane is Lane.BULK and self.lacks_room:
            return
        for sequence in list(self._waiting[lane]):
            if len(self._running[lane]) >= self._limits[lane].max_sequences or not self._admit(sequence):
                return
            yield sequence

    def _admit(self, sequence: Sequence) -> bool:
        others_run = any(self._running.values())
        may_take_sessions = sequence.lane is Lane.INTERACTIVE or not others_run
        table = self._cache.reserve(
            sequence.token_ids, sequence.max_tokens, may_take_sessions, is_private=not sequence.use_cache
        )
        if table is None:
            if sequence.lane is Lane.INTERACTIVE:
                self._refused = sequence
            return False
        sequence.table = table
        sequence.num_cached = sequence.num_computed = table.num_cached_tokens
        del self._waiting[sequence.lane][sequence]
        self._deadlines.pop(sequence, None)
        self._running[sequence.lane][sequence] = None
        return True

    def _give_back(self, sequence: Sequence) -> None:
        if sequence.table is not None:
            self._cache.release(sequence.table, sequence.token_ids, sequence.num_computed, sequence.session)
            sequence.table = None

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` when a request or a block is lost."""
        self._cache.check_integrity()
        for sequence in self.sequences:
            assert sequence.end_reason is None
            assert sequence.num_computed < len(sequence.token_ids) <= sequence.max_tokens
        for waiting in self._waiting.values():
            assert all(sequence.table is None and not sequence.is_in_flight for sequence in waiting)
        for running in self._running.values():
            assert all(sequence.table is not None for sequence in running)
        assert all(sequence in self._waiting[sequence.lane] for sequence in self._deadlines)
        if not self.sequences:
            assert not self._by_session


def _chunk(sequence: Sequence, budget: int, others: Load, propose: ProposeDrafts) -> Chunk:
    """As many pending tokens as the budget allows, and behind the newest one drafts."""
    start = sequence.num_computed
    end = min(len(sequence.token_ids), start + budget)
    token_ids = sequence.token_ids[start:end]
    if end < len(sequence.token_ids):
        return Chunk(sequence, start, token_ids)
    # the last token that may be generated is never computed, so drafts leave room for one more
    room = min(budget - len(token_ids), sequence.max_tokens - end - 1)
    load = replace(others, num_rows=others.num_rows + len(token_ids))
    drafts = propose(sequence, room, load)[:room] if room > 0 else []
    return Chunk(sequence, start, token_ids + drafts, len(drafts), is_sampled=True)
