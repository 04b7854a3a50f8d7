"""Plan, execute, update: the loop that all requests of an engine share.

One thread computes. Other threads leave their wishes in an inbox, which is looked into between two layers: so a
keystroke interrupts bulk work within a layer, and a cancelled request costs no more than the layer it is in.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, takewhile

import numpy as np
import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.cache.storage import KVStorage
from engine.config import Profile
from engine.flight import Flight
from engine.generation import Generation
from engine.model.contract import AnyDecoder
from engine.observer import Observer
from engine.request import FinishReason, Lane
from engine.sampling import AnyScores, Likeliest, Sampler, Scores
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Chunk, Plan, Sequence
from engine.speculation.sources import DraftSource
from engine.speculation.speculator import Speculator

OnError = Callable[[Exception], None]

_SCORED_TOGETHER = 16


@dataclass(eq=False)
class Job:
    """A request on its way through the loop."""

    sequence: Sequence
    generation: Generation
    on_error: OnError
    sources: tuple[DraftSource, ...] = ()
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.generation.params)


class Loop:
    """Runs jobs. ``submit`` and ``cancel`` are for any thread, everything else for the one that computes."""

    def __init__(
        self,
        decoder: AnyDecoder,
        storage: KVStorage,
        cache: KVCache,
        profile: Profile,
        num_tokens: int,
        observer: Observer | None = None,
    ) -> None:
        """``num_tokens`` is the size of the vocabulary: a padded embedding has rows that are no tokens."""
        self._decoder = decoder
        self._storage = storage
        self._cache = cache
        self._profile = profile
        self._num_tokens = num_tokens
        self.observer = observer
        self.scheduler = Scheduler(cache, {Lane.INTERACTIVE: profile.interactive, Lane.BULK: profile.bulk})
        self.speculator = Speculator(profile)
        self._jobs: dict[Sequence, Job] = {}
        self._inbox: deque[tuple[Job, FinishReason | None]] = deque()
        self._paused: Flight | None = None
        self._bulk_credit_s = 0.0
        self._is_stopping = False

    def with_profile(self, profile: Profile) -> "Loop":
        """A loop over the same model and cache under other limits. Raises ``ValueError`` while this one has work."""
        if self.has_work:
            raise ValueError("a loop that has work cannot be replaced")
        return Loop(self._decoder, self._storage, self._cache, profile, self._num_tokens, self.observer)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._inbox.append((job, None))

    def cancel(self, job: Job) -> None:
        """End a job if it has not ended: before the next layer is computed."""
        self._inbox.append((job, FinishReason.CANCELLED))

    def stop(self) -> None:
        """Give up the pass that is being computed: the next step only ends what there is."""
        self._is_stopping = True

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return bool(self._inbox or self._jobs or self._paused)

    @property
    def has_mail(self) -> bool:
        """Whether another thread wants something."""
        return bool(self._inbox)

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return len(self._inbox) + sum(self.scheduler.num_waiting(lane) for lane in Lane)

    def step(self) -> None:
        """Compute what is most urgent: a pass of the interactive lane, then the share of bulk work that it owes.

        Returns after a pass at the latest, or when interactive work has arrived.
        """
        self._look_around()
        started = time.perf_counter()
        plan = self._plan(Lane.INTERACTIVE)
        if plan is None:
            self._run_bulk(None)
            return
        flight = Flight(plan, self._decoder, self._storage)
        self._guard(flight, self._run)
        share = self._profile.bulk_share
        if self._paused or self.scheduler.has_work(Lane.BULK):
            self._bulk_credit_s += (time.perf_counter() - started) * share / (1.0 - share)
            self._run_bulk(self._bulk_credit_s)

    def settle(self) -> None:
        """Take in what has been submitted and cancelled, and let go of what has ended; computes nothing."""
        self._look_around()
        if self._paused is not None:
            self._drop_ended(self._paused)
            if self._paused.is_empty:
                self._paused = None

    def cancel_all(self) -> None:
        """End everything."""
        self._look_around()
        for job in list(self._jobs.values()):
            self._end(job, FinishReason.CANCELLED)
        self.settle()

    def fail_all(self, error: Exception) -> None:
        """End everything with an error."""
        for job in list(self._jobs.values()):
            self._fail(job, error)
        self.settle()

    def check_idle(self) -> None:
        """Raises ``AssertionError`` when something is held although nothing runs."""
        self.scheduler.check_integrity()
        assert self.has_work or self.scheduler.num_held_blocks == 0, "blocks are held by nobody"

    def _plan(self, lane: Lane) -> Plan | None:
        plan = self.scheduler.plan(lane, self.speculator.propose)
        for chunk in plan.chunks if plan else ():
            self._jobs[chunk.sequence].generation.begin(chunk.sequence.num_cached)
        return plan

    def _run(self, flight: Flight) -> None:
        """Compute a pass to its end, without those that end meanwhile."""
        while not flight.is_done:
            flight.advance()
            if self._look_around():
                self._drop_ended(flight)
        self._update(flight)

    def _run_bulk(self, budget_s: float | None) -> None:
        """Compute bulk work for about ``budget_s``; None goes on until a pass is complete or somebody waits."""
        if self._paused is None:
            plan = self._plan(Lane.BULK)
            if plan is None:
                self._bulk_credit_s = 0.0
                return
            self._paused = Flight(plan, self._decoder, self._storage)
        flight = self._paused
        self._drop_ended(flight)
        before_s = flight.seconds
        self._guard(flight, lambda flight: self._advance_bulk(flight, budget_s))
        self._bulk_credit_s = 0.0 if budget_s is None else budget_s - (flight.seconds - before_s)
        if flight.is_done:
            self._paused = None

    def _advance_bulk(self, flight: Flight, budget_s: float | None) -> None:
        before_s = flight.seconds
        while not flight.is_done:
            if budget_s is None:
                if self._look_around():
                    self._drop_ended(flight)
                if self.scheduler.has_work(Lane.INTERACTIVE) and not self.scheduler.lacks_room:
                    return
            elif flight.seconds - before_s >= budget_s:
                return
            if not flight.is_done:
                flight.advance()
        self._update(flight)

    def _guard(self, flight: Flight, work: Callable[[Flight], None]) -> None:
        """What breaks a pass ends its requests, and nothing else."""
        try:
            work(flight)
        except Exception as error:  # noqa: BLE001 - each of them raises it
            for chunk in flight.chunks:
                job = self._jobs.get(chunk.sequence)
                if job is not None:
                    self._fail(job, error)
                if chunk.sequence.is_in_flight:  # not let go of before it broke
                    self.scheduler.land(chunk, is_complete=False)
            flight.abandon()

    def _look_around(self) -> bool:
        """Take in what other threads want; True when some request may have ended by it."""
        has_ended = self._is_stopping
        for job in list(self._jobs.values()) if self._is_stopping else ():
            self._end(job, FinishReason.CANCELLED)
        while self._inbox:
            job, reason = self._inbox.popleft()
            if reason is not None:
                has_ended |= self._end(job, reason)
                continue
            self._jobs[job.sequence] = job
            self.speculator.add(job.sequence, job.sources)
            older = self.scheduler.add(job.sequence)
            if older is not None:
                self._report(self._jobs[older], FinishReason.SUPERSEDED)
                has_ended = True
        for sequence in self.scheduler.expire(time.monotonic()):
            self._report(self._jobs[sequence], FinishReason.EXPIRED)
        return has_ended

    def _drop_ended(self, flight: Flight) -> None:
        """Stop computing for requests that have ended, unless their successor needs the same tokens."""
        gone = [
            chunk for chunk in flight.chunks if chunk.sequence.end_reason is not None and not _serves_successor(chunk)
        ]
        if gone:
            flight.drop(gone)
            for chunk in gone:
                self.scheduler.land(chunk, is_complete=False)
                self._count_wasted(chunk.sequence, len(chunk.token_ids))

    def _update(self, flight: Flight) -> None:
        """Choose tokens, hand them out, and let go of the blocks of what has ended."""
        started = time.perf_counter()
        sampled = [
            chunk
            for chunk in flight.chunks
            if chunk.is_sampled and chunk.sequence.end_reason is None and not self._is_warm_up(chunk)
        ]
        accepted = self._choose_all(flight, sampled)
        for chunk in flight.chunks:
            if self._is_warm_up(chunk) and chunk.is_sampled and chunk.sequence in self._jobs:
                self._end(self._jobs[chunk.sequence], FinishReason.LENGTH)
            self.scheduler.land(chunk, accepted.get(chunk, 0))
        seconds = flight.seconds + time.perf_counter() - started
        if flight.is_whole:
            self.speculator.cost.record(flight.num_planned_rows, seconds)
        if self.observer is not None:
            self.observer.on_pass(flight.lane, flight.num_planned_rows, seconds, flight.num_keys)

    def _choose_all(self, flight: Flight, sampled: list[Chunk]) -> dict[Chunk, int]:
        """Choose the next tokens of some sequences; returns how many of their drafts came true.

        The likeliest ones are chosen while they are computed. All logits are wanted of a sequence that draws, of few
        at a time, and of one that may choose only some tokens.
        """
        free = [chunk for chunk in sampled if self._jobs[chunk.sequence].generation.allowed_ids() is None]
        accepted: dict[Chunk, int] = {}
        for some in self._scored_together(free):
            hidden = [flight.hidden(chunk) for chunk in some]
            best = self._decoder.best(torch.cat(hidden), self._num_tokens, self._kept_rows(some))
            accepted |= self._choose_each(some, Likeliest(best))
        others = [chunk for chunk in sampled if chunk not in accepted]
        for some in _batched(others):
            hidden = [flight.hidden(chunk) for chunk in some]
            logits = self._decoder.logits(torch.cat(hidden), self._only_wanted(some))[:, : self._num_tokens]
            accepted |= self._choose_each(some, Scores(logits))
        return accepted

    def _scored_together(self, chunks: list[Chunk]) -> list[list[Chunk]]:
        """The greedy ones with the first of those that draw, then the rest of these."""
        greedy = [chunk for chunk in chunks if not self._draws(chunk)]
        drawing = _batched([chunk for chunk in chunks if self._draws(chunk)])
        together = [greedy + drawing[0], *drawing[1:]] if drawing else [greedy]
        return [some for some in together if some]

    def _kept_rows(self, chunks: list[Chunk]) -> list[int]:
        """Rows of the sequences that draw."""
        rows = [self._draws(chunk) for chunk in chunks for _ in range(chunk.num_logits)]
        return [row for row, draws in enumerate(rows) if draws]

    def _draws(self, chunk: Chunk) -> bool:
        return not self._jobs[chunk.sequence].sampler.is_greedy

    def _choose_each(self, chunks: list[Chunk], scores: AnyScores) -> dict[Chunk, int]:
        first_rows = accumulate((chunk.num_logits for chunk in chunks), initial=0)
        return {chunk: self._choose(chunk, scores, row) for chunk, row in zip(chunks, first_rows, strict=False)}

    def _only_wanted(self, sampled: list[Chunk]) -> Tensor | None:
        """The tokens that any row may choose, where each may choose only a few; None where all are wanted."""
        if any(chunk.num_logits > 1 for chunk in sampled):  # a draft's row is constrained by what comes before it
            return None
        allowed = [self._jobs[chunk.sequence].generation.allowed_ids() for chunk in sampled]
        few = [ids for ids in allowed if ids is not None]
        return torch.from_numpy(np.concatenate(few)) if len(few) == len(allowed) else None

    def _choose(self, chunk: Chunk, scores: AnyScores, first_row: int) -> int:
        """Choose the next tokens of one sequence; returns how many of its drafts came true."""
        sequence = chunk.sequence
        job = self._jobs[sequence]
        drafts = chunk.token_ids[len(chunk.token_ids) - chunk.num_drafts :]
        for index in range(1 + len(drafts)):
            row = first_row + index
            allowed = job.generation.allowed_ids()
            token = job.sampler.choose(scores, row, len(sequence.token_ids), allowed)
            sequence.token_ids.append(token)
            reason = job.generation.accept(token, scores.logprob(row, token, allowed))
            if reason is None and len(sequence.token_ids) >= sequence.max_tokens:
                reason = FinishReason.LENGTH
            is_right = index < len(drafts) and drafts[index] == token
            if reason is not None or not is_right:
                break
        num_right = index + is_right
        # nothing is known of the drafts behind the end of an answer, or behind the first wrong one
        self.speculator.record(sequence, min(len(drafts), index + 1), num_right)
        job.generation.count_drafts(len(drafts), num_right)
        if reason is not None:
            self._end(job, reason)
        return index

    def _is_warm_up(self, chunk: Chunk) -> bool:
        """Whether only the prompt was to be computed."""
        job = self._jobs.get(chunk.sequence)
        return job is not None and job.generation.is_complete

    def _end(self, job: Job, reason: FinishReason) -> bool:
        if not self.scheduler.end(job.sequence, reason):
            return False
        self._report(job, reason)
        return True

    def _report(self, job: Job, reason: FinishReason) -> None:
        """Tell whoever asked; the scheduler knows it already."""
        sequence = job.sequence
        self._remove(job)
        finished = job.generation.end(reason)
        if self.observer is not None:
            self.observer.on_end(sequence.lane, finished)
        if reason in (FinishReason.CANCELLED, FinishReason.SUPERSEDED, FinishReason.FAILED):
            num_used = max(sequence.num_cached, _num_taken_over(sequence))
            self._count_wasted(sequence, max(0, sequence.num_computed - num_used))

    def _count_wasted(self, sequence: Sequence, num_tokens: int) -> None:
        if self.observer is not None and num_tokens:
            self.observer.on_waste(sequence.lane, num_tokens)

    def _fail(self, job: Job, error: Exception) -> None:
        self.scheduler.end(job.sequence, FinishReason.FAILED)
        self._remove(job)
        job.on_error(error)

    def _remove(self, job: Job) -> None:
        del self._jobs[job.sequence]
        self.speculator.remove(job.sequence)


def _batched(chunks: list[Chunk]) -> list[list[Chunk]]:
    """So few together that their logits do not fill the memory."""
    return [chunks[first : first + _SCORED_TOGETHER] for first in range(0, len(chunks), _SCORED_TOGETHER)]


def _serves_successor(chunk: Chunk) -> bool:
    """Whether the request that took its place wants all the tokens of the chunk computed."""
    heir = chunk.sequence.heir
    if heir is None or heir.end_reason is not None or not (heir.use_cache and chunk.sequence.use_cache):
        return False
    return heir.token_ids[: chunk.end] == chunk.sequence.token_ids[: chunk.start] + chunk.token_ids


def _num_taken_over(sequence: Sequence) -> int:
    """How many of its computed tokens the request that took its place begins with."""
    heir = sequence.heir
    if heir is None or not (heir.use_cache and sequence.use_cache):
        return 0
    pairs = zip(sequence.token_ids[: sequence.num_computed], heir.token_ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
