"""An executor that computes only who wrote what, and holds the scheduler to its promises."""

from collections import Counter

from engine.cache.kv_cache import CacheLimits
from engine.config import LaneLimits
from engine.request import FinishReason, Lane
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Chunk, Load, Plan, Sequence
from tests.engine.cache.fakes import UNFINISHED, ProbedCache

_BLOCK_TOKENS = 3


def _next_token(token_ids: list[int]) -> int:
    """What the model would say; -1 and -2 have the same hash in CPython."""
    return -1 - (sum(token_ids) + len(token_ids)) % 3


class Bench:
    """A scheduler, its cache, and passes that are on their way."""

    def __init__(self, num_blocks: int, limits: LaneLimits, max_sessions: int = 2) -> None:
        self.probed = ProbedCache(num_blocks, _BLOCK_TOKENS, CacheLimits(max_sessions, max_protected_share=0.5))
        self.limits = limits
        self.scheduler = Scheduler(self.probed.cache, dict.fromkeys(Lane, limits))
        self.ends: Counter[Sequence] = Counter()
        self.reasons: dict[Sequence, FinishReason] = {}
        self.covered: dict[Sequence, int] = {}
        self.added: list[Sequence] = []
        self.in_flight: list[Chunk] = []
        self.max_drafts = 99
        self.num_right = 0  # so many drafts of a proposal come true

    def add(self, sequence: Sequence) -> Sequence:
        self.added.append(sequence)
        older = self.scheduler.add(sequence)
        if older is not None:
            self._note_end(older, FinishReason.SUPERSEDED)
        return sequence

    def end(self, sequence: Sequence, reason: FinishReason) -> bool:
        has_ended = self.scheduler.end(sequence, reason)
        if has_ended:
            self._note_end(sequence, reason)
        return has_ended

    def expire(self, now_s: float) -> None:
        for sequence in self.scheduler.expire(now_s):
            self._note_end(sequence, FinishReason.EXPIRED)

    def _note_end(self, sequence: Sequence, reason: FinishReason) -> None:
        self.ends[sequence] += 1
        self.reasons[sequence] = reason
        assert sequence.end_reason is reason

    def propose(self, sequence: Sequence, max_drafts: int, load: Load) -> list[int]:
        """Right for a while, then wrong, and more than were asked for."""
        drafts: list[int] = []
        for index in range(min(self.max_drafts, max_drafts + 1)):
            right = _next_token(sequence.token_ids + drafts)
            drafts.append(right if index < self.num_right else right + 10)
        return drafts

    def start(self, lane: Lane) -> Plan | None:
        """Begin a pass: from now on anything may stand where it writes."""
        plan = self.scheduler.plan(lane, self.propose)
        assert self.scheduler.num_running(lane) <= self.limits.max_sequences
        if plan is None:
            return None
        assert plan.lane is lane
        assert 1 <= plan.num_rows <= self.limits.max_batch_tokens
        for chunk in plan.chunks:
            self._check_chunk(chunk)
            self._write(chunk, is_complete=False)
        self.in_flight += plan.chunks
        return plan

    def _check_chunk(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        assert sequence.end_reason is None
        assert sequence not in [other.sequence for other in self.in_flight]
        assert chunk.token_ids
        assert chunk.start == self.covered.setdefault(sequence, sequence.num_cached), (
            "tokens are left out, or computed twice"
        )
        num_known = len(chunk.token_ids) - chunk.num_drafts
        assert chunk.token_ids[:num_known] == sequence.token_ids[chunk.start :][:num_known]
        assert chunk.is_sampled == (chunk.start + num_known == len(sequence.token_ids))
        assert chunk.num_logits == (1 + chunk.num_drafts if chunk.is_sampled else 0)
        assert chunk.end <= max(sequence.max_tokens - 1, sequence.num_prompt_tokens), "a draft without room"

    def _write(self, chunk: Chunk, is_complete: bool) -> None:
        table = chunk.sequence.table
        assert table is not None, "the blocks are gone while a pass writes into them"
        self.probed.assert_private(table, chunk.start, chunk.end)
        known = chunk.sequence.token_ids[: chunk.start] + chunk.token_ids
        for position in range(chunk.start, chunk.end):
            slot = tuple(known[: position + 1]) if is_complete else UNFINISHED
            self.probed.memory.write(table.blocks, position, slot)

    def land(self, chunk: Chunk, *, is_complete: bool = True, is_last: bool = False) -> None:
        """Complete a chunk, or give it up; ``is_last`` ends the answer with its next token."""
        self.in_flight.remove(chunk)
        self._write(chunk, is_complete)
        num_accepted = self._choose(chunk, is_last) if is_complete else 0
        if is_complete:
            self.covered[chunk.sequence] = chunk.end - chunk.num_drafts + num_accepted
        self.scheduler.land(chunk, num_accepted, is_complete=is_complete)

    def _choose(self, chunk: Chunk, is_last: bool) -> int:
        """Append the tokens that come true and the one behind them; returns how many drafts did."""
        sequence = chunk.sequence
        if sequence.end_reason is not None or not chunk.is_sampled:
            return 0
        if len(sequence.token_ids) == sequence.max_tokens:  # only the prompt was wanted
            self.end(sequence, FinishReason.LENGTH)
            return 0
        drafts = chunk.token_ids[len(chunk.token_ids) - chunk.num_drafts :]
        for num_accepted in range(len(drafts) + 1):
            token = _next_token(sequence.token_ids)
            sequence.token_ids.append(token)
            if len(sequence.token_ids) == sequence.max_tokens:
                self.end(sequence, FinishReason.LENGTH)
            elif is_last:
                self.end(sequence, FinishReason.STOP)
            is_right = num_accepted < len(drafts) and drafts[num_accepted] == token
            if sequence.end_reason is not None or not is_right:
                break
        return num_accepted

    def check(self) -> None:
        self.scheduler.check_integrity()
        self.probed.assert_consistent()
        for sequence in self.added:
            if sequence.table is not None:
                self.probed.assert_computed(sequence.table, sequence.token_ids, sequence.num_computed)
        assert set(self.ends.values()) <= {1}
        assert set(self.scheduler.sequences) == set(self.added) - set(self.ends)

    def pass_all(self, lane: Lane) -> bool:
        """One whole pass of a lane; False when there was nothing to compute."""
        plan = self.start(lane)
        for chunk in plan.chunks if plan else ():
            self.land(chunk)
        return plan is not None

    def drain(self) -> None:
        """Go on to the end: every request must come to one, and leave nothing."""
        for chunk in list(self.in_flight):
            self.land(chunk)
        while self.pass_all(Lane.INTERACTIVE) or self.pass_all(Lane.BULK):
            self.check()
        assert self.scheduler.sequences == [], "requests starve"
        assert self.ends == dict.fromkeys(self.added, 1)
        assert self.scheduler.num_held_blocks == 0
        self.check()
