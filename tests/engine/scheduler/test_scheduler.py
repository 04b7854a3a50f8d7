"""The scheduler under random use: arrivals, passes, ends and the clock in any order."""

import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import LaneLimits
from engine.request import FinishReason, Lane
from engine.scheduler.sequence import Sequence
from tests.engine.cache.fakes import common_start
from tests.engine.scheduler.fakes import Bench


class _RandomUse(RuleBasedStateMachine):
    """Two lanes, few blocks, several passes in flight."""

    @initialize(
        num_blocks=st.integers(7, 20),
        max_sequences=st.integers(1, 4),
        max_batch_tokens=st.integers(1, 12),
        prompts_first=st.booleans(),
    )
    def begin(self, num_blocks: int, max_sequences: int, max_batch_tokens: int, prompts_first: bool) -> None:
        self.bench = Bench(num_blocks, LaneLimits(max_sequences, max_batch_tokens, prompts_first))
        self.now_s = 0.0

    @rule(
        lane=st.sampled_from(Lane),
        known=st.integers(0, 99),
        num_known=st.integers(0, 10),
        new=st.lists(st.sampled_from([-1, -2, 0]), min_size=1, max_size=6),
        num_new=st.integers(0, 5),
        session=st.sampled_from(["", "", "a", "b"]),
        patience_s=st.sampled_from([None, None, 0.5, 3.0]),
    )
    def add(
        self,
        lane: Lane,
        known: int,
        num_known: int,
        new: list[int],
        num_new: int,
        session: str,
        patience_s: float | None,
    ) -> None:
        earlier = self.bench.added[known % len(self.bench.added)].token_ids if self.bench.added else []
        prompt = earlier[:num_known] + new
        deadline_s = None if patience_s is None else self.now_s + patience_s
        self.bench.add(Sequence(prompt, len(prompt) + num_new, lane, deadline_s, session))

    @rule(lane=st.sampled_from(Lane), num_right=st.integers(0, 4))
    def start(self, lane: Lane, num_right: int) -> None:
        self.bench.num_right = num_right
        self.bench.start(lane)

    @precondition(lambda self: self.bench.in_flight)
    @rule(which=st.integers(0, 99), is_complete=st.sampled_from([True, True, False]), is_last=st.booleans())
    def land(self, which: int, is_complete: bool, is_last: bool) -> None:
        chunk = self.bench.in_flight[which % len(self.bench.in_flight)]
        self.bench.land(chunk, is_complete=is_complete, is_last=is_last)

    @precondition(lambda self: self.bench.added)
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        sequence = self.bench.added[which % len(self.bench.added)]
        had_ended = sequence.end_reason is not None
        assert self.bench.end(sequence, FinishReason.CANCELLED) != had_ended

    @rule(seconds=st.sampled_from([0.25, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.bench.expire(self.now_s)
        for sequence in self.bench.scheduler.sequences:
            is_late = sequence.deadline_s is not None and sequence.deadline_s <= self.now_s
            assert not is_late or sequence.table is not None

    @invariant()
    def everything_is_right(self) -> None:
        self.bench.check()

    def teardown(self) -> None:
        self.bench.drain()


TestRandomUse = _RandomUse.TestCase
TestRandomUse.settings = settings(derandomize=True, deadline=None, max_examples=150, stateful_step_count=40)


def _bench(num_blocks: int = 20, max_sequences: int = 4, max_batch_tokens: int = 8) -> Bench:
    return Bench(num_blocks, LaneLimits(max_sequences, max_batch_tokens))


def test_a_prompt_is_computed_in_pieces_exactly_once() -> None:
    bench = _bench(max_batch_tokens=4)
    bench.max_drafts = 0
    sequence = bench.add(Sequence(list(range(10)), 12))
    pieces = []
    while plan := bench.start(Lane.INTERACTIVE):
        (chunk,) = plan.chunks
        pieces.append((chunk.start, chunk.end, chunk.is_sampled))
        bench.land(chunk)
    assert pieces == [(0, 4, False), (4, 8, False), (8, 10, True), (10, 11, True)]
    assert len(sequence.token_ids) == 12
    bench.drain()


def test_those_that_decode_come_first_and_a_prompt_takes_what_is_left() -> None:
    bench = _bench(max_batch_tokens=6)
    early = bench.add(Sequence([1, 2], 8))
    bench.pass_all(Lane.INTERACTIVE)
    late = bench.add(Sequence(list(range(100, 110)), 12))
    plan = bench.start(Lane.INTERACTIVE)
    assert plan is not None
    assert [(chunk.sequence, len(chunk.token_ids)) for chunk in plan.chunks] == [(early, 5), (late, 1)]
    assert plan.chunks[0].num_drafts == 4


def test_where_prompts_are_first_answers_go_on_when_all_are_computed() -> None:
    bench = Bench(40, LaneLimits(4, 8, prompts_first=True))
    bench.max_drafts = 0
    first = bench.add(Sequence([1, 2, 3, 4, 5], 9))
    bench.pass_all(Lane.INTERACTIVE)
    second = bench.add(Sequence(list(range(10, 20)), 13))
    third = bench.add(Sequence([30, 31], 4))
    passes = []
    while plan := bench.start(Lane.INTERACTIVE):
        passes.append([(chunk.sequence, len(chunk.token_ids)) for chunk in plan.chunks])
        for chunk in plan.chunks:
            bench.land(chunk)
    assert passes[0] == [(second, 8)]
    assert passes[1] == [(second, 2), (third, 2)]  # half of the budget: enough
    assert passes[2] == [(first, 1), (second, 1), (third, 1)]
    bench.drain()


def test_a_small_pass_over_prompts_takes_the_others_along() -> None:
    bench = Bench(40, LaneLimits(4, 8, prompts_first=True))
    bench.max_drafts = 0
    first = bench.add(Sequence([1, 2, 3, 4, 5], 9))
    bench.pass_all(Lane.INTERACTIVE)
    small = bench.add(Sequence([7, 8, 9], 9))
    plan = bench.start(Lane.INTERACTIVE)
    assert plan is not None
    assert [(chunk.sequence, len(chunk.token_ids)) for chunk in plan.chunks] == [(small, 3), (first, 1)]


def test_drafts_share_the_budget() -> None:
    bench = _bench(max_batch_tokens=7)
    bench.max_drafts = 0
    for token in range(3):
        bench.add(Sequence([token], 12))
    bench.pass_all(Lane.INTERACTIVE)
    bench.max_drafts = 99
    plan = bench.start(Lane.INTERACTIVE)
    assert plan is not None
    assert [len(chunk.token_ids) for chunk in plan.chunks] == [2, 2, 3]


def test_cancel_and_finish_end_a_request_once() -> None:
    """Pitfall 1: whichever comes first is the end, and the blocks are given back once."""
    bench = _bench()
    sequence = bench.add(Sequence([1, 2, 3], 6))
    plan = bench.start(Lane.INTERACTIVE)
    assert plan is not None
    assert bench.end(sequence, FinishReason.STOP)
    assert not bench.end(sequence, FinishReason.CANCELLED)
    bench.land(plan.chunks[0])
    assert not bench.end(sequence, FinishReason.CANCELLED)
    assert sequence.end_reason is FinishReason.STOP
    bench.drain()


def test_blocks_are_not_freed_while_a_pass_may_write_them() -> None:
    """Pitfall 2: a request that ends in flight holds its blocks until the pass lets go of them."""
    bench = _bench(num_blocks=4)
    sequence = bench.add(Sequence([1, 2, 3], 12))
    plan = bench.start(Lane.INTERACTIVE)
    assert plan is not None
    assert bench.end(sequence, FinishReason.CANCELLED)
    assert bench.scheduler.num_held_blocks == 4
    waiting = bench.add(Sequence([4], 2))
    assert bench.start(Lane.INTERACTIVE) is None, "blocks were given to somebody else"
    bench.land(plan.chunks[0], is_complete=False)
    assert bench.scheduler.num_held_blocks == 0
    assert bench.start(Lane.INTERACTIVE) is not None
    assert waiting.table is not None
    bench.drain()


def test_an_incomplete_chunk_publishes_nothing() -> None:
    """Pitfall 3: what not every layer has written is not computed."""
    bench = _bench(max_batch_tokens=4)
    bench.add(Sequence(list(range(9)), 10))
    bench.pass_all(Lane.INTERACTIVE)
    plan = bench.start(Lane.INTERACTIVE)
    assert plan is not None
    sequence = plan.chunks[0].sequence
    bench.end(sequence, FinishReason.CANCELLED)
    bench.land(plan.chunks[0], is_complete=False)
    assert max(bench.probed.cached_paths(), key=len) == (0, 1, 2, 3)
    bench.drain()


def test_a_chunk_that_is_given_up_is_computed_again() -> None:
    bench = _bench(max_batch_tokens=4)
    bench.add(Sequence(list(range(6)), 8))
    plans = []
    for is_complete in (False, True):
        plan = bench.start(Lane.INTERACTIVE)
        assert plan is not None
        plans.append(plan.chunks[0].token_ids)
        bench.land(plan.chunks[0], is_complete=is_complete)
    assert plans == [[0, 1, 2, 3]] * 2
    bench.drain()


def test_rejected_drafts_are_never_published() -> None:
    """Pitfall 3: of the drafts only those that came true count as computed, also at a request's end."""
    bench = _bench(max_batch_tokens=12)
    bench.num_right = 2
    sequence = bench.add(Sequence([7, 7], 14))
    bench.pass_all(Lane.INTERACTIVE)
    plan = bench.start(Lane.INTERACTIVE)
    assert plan is not None
    assert plan.chunks[0].num_drafts > 2
    bench.land(plan.chunks[0])
    assert bench.end(sequence, FinishReason.CANCELLED)
    computed = tuple(sequence.token_ids[: sequence.num_computed])
    assert max(bench.probed.cached_paths(), key=len) == computed
    assert len(computed) == len(sequence.token_ids) - 1
    bench.drain()


def test_drafts_that_are_not_verified_are_not_published_when_their_request_is_cancelled() -> None:
    """Pitfalls 3 and 4: a complete pass of a cancelled request leaves what was known before it."""
    bench = _bench(max_batch_tokens=12)
    bench.num_right = 9
    sequence = bench.add(Sequence([7, 7], 14))
    bench.pass_all(Lane.INTERACTIVE)
    known = tuple(sequence.token_ids)
    plan = bench.start(Lane.INTERACTIVE)
    assert plan is not None
    assert plan.chunks[0].num_drafts
    bench.end(sequence, FinishReason.CANCELLED)
    bench.land(plan.chunks[0])
    assert max(bench.probed.cached_paths(), key=len) == known
    bench.drain()


def test_two_that_share_a_prefix_write_into_blocks_of_their_own() -> None:
    """Pitfall 5: shared blocks are read-only, also while both run."""
    bench = _bench(max_batch_tokens=12)
    bench.add(Sequence([1, 2, 3, 4], 6))
    bench.drain()
    both = [bench.add(Sequence([1, 2, 3, 4, token], 9)) for token in (5, 6)]
    bench.pass_all(Lane.INTERACTIVE)
    assert [sequence.num_cached for sequence in both] == [4, 4]
    blocks = [sequence.table.blocks for sequence in both if sequence.table is not None]
    assert blocks[0][0] == blocks[1][0]
    assert not set(blocks[0][1:]) & set(blocks[1][1:])
    bench.drain()


def test_a_prompt_that_is_cached_still_computes_its_last_token() -> None:
    """Pitfall 8: nothing could be sampled without it."""
    bench = _bench()
    computed = []
    for _ in range(2):
        bench.add(Sequence([1, 2, 3, 4, 5, 6], 7))
        plan = bench.start(Lane.INTERACTIVE)
        assert plan is not None
        assert plan.chunks[0].is_sampled
        computed.append(plan.chunks[0].token_ids)
        bench.land(plan.chunks[0])
    assert computed == [[1, 2, 3, 4, 5, 6], [6]]
    bench.drain()


def test_what_is_computed_serves_others_while_its_request_still_runs() -> None:
    bench = _bench(max_batch_tokens=12)
    running = bench.add(Sequence([1, 2, 3, 4, 5, 6, 7], 12))
    bench.pass_all(Lane.INTERACTIVE)
    other = bench.add(Sequence([1, 2, 3, 4, 5, 6, 8], 12, Lane.BULK))
    bench.pass_all(Lane.BULK)
    assert running.end_reason is None
    assert other.num_cached == 6
    bench.drain()


def test_a_newer_request_of_a_session_takes_the_place_of_the_older_one() -> None:
    bench = _bench()
    older = bench.add(Sequence([1, 2, 3, 4], 8, session="a"))
    other = bench.add(Sequence([1], 8, session="b"))
    plan = bench.start(Lane.INTERACTIVE)
    assert plan is not None
    newer = bench.add(Sequence([1, 2, 3, 4, 5], 8, session="a"))
    assert (older.end_reason, older.successor) == (FinishReason.SUPERSEDED, newer)
    assert other.end_reason is None
    for chunk in plan.chunks:
        bench.land(chunk)
    bench.pass_all(Lane.INTERACTIVE)
    assert newer.num_cached == 4, "the pass of the older one was for nothing"
    bench.drain()


def test_a_deadline_counts_until_a_request_begins() -> None:
    bench = _bench(max_sequences=1)
    early, late, patient = (
        bench.add(Sequence([token], 4, deadline_s=deadline_s)) for token, deadline_s in ((1, 2.0), (2, 2.0), (3, 9.0))
    )
    bench.pass_all(Lane.INTERACTIVE)
    bench.expire(1.9)
    assert late.end_reason is None
    bench.expire(2.0)
    assert [sequence.end_reason for sequence in (early, late, patient)] == [None, FinishReason.EXPIRED, None]
    bench.drain()
    assert [bench.reasons[sequence] for sequence in (early, patient)] == [FinishReason.LENGTH] * 2


def test_what_is_admitted_begins_in_the_same_pass() -> None:
    """Admitted without a share of the pass it would miss its deadline's end, and what others are about to publish."""
    bench = _bench(max_batch_tokens=4)
    prompts = [[1, 2, 3, 4, 5, 6, token] for token in range(3)]
    sequences = [bench.add(Sequence(prompt, 8)) for prompt in prompts]
    plan = bench.start(Lane.INTERACTIVE)
    assert plan is not None
    admitted = [sequence for sequence in sequences if sequence.table is not None]
    assert admitted == [chunk.sequence for chunk in plan.chunks]


def test_bulk_work_does_not_take_a_session_s_blocks_while_something_runs() -> None:
    bench = _bench(num_blocks=8)
    bench.add(Sequence(list(range(11)), 12, session="a"))
    bench.drain()
    typed = bench.add(Sequence([50], 6))
    bench.pass_all(Lane.INTERACTIVE)
    bulk = bench.add(Sequence([60], 15, Lane.BULK))
    assert bench.start(Lane.BULK) is None
    assert _is_cached(bench, list(range(11)))
    bench.end(typed, FinishReason.CANCELLED)
    bench.pass_all(Lane.BULK)
    assert bulk.table is not None, "an idle engine must admit whatever fits"
    bench.drain()


def _is_cached(bench: Bench, token_ids: list[int]) -> bool:
    return any(common_start(path, token_ids) == len(token_ids) for path in bench.probed.cached_paths())


def test_bulk_work_does_not_take_the_room_that_somebody_waits_for() -> None:
    """Small bulk requests that come and go would keep a larger request out for as long as there are any."""
    bench = _bench(num_blocks=8, max_batch_tokens=16)
    for token in range(40):
        bench.add(Sequence([token], 6 if token % 2 else 5, Lane.BULK))
    bench.pass_all(Lane.BULK)
    typed = bench.add(Sequence([100] * 12, 15))
    for _ in range(8):
        bench.pass_all(Lane.INTERACTIVE)
        bench.pass_all(Lane.BULK)
    assert typed.table is not None or typed.end_reason is not None
    bench.drain()


def test_bulk_work_is_admitted_while_the_interactive_lane_is_busy() -> None:
    bench = _bench(max_sequences=1, max_batch_tokens=2)
    for token in range(3):
        bench.add(Sequence([token] * 3, 6))
    bulk = bench.add(Sequence([9], 4, Lane.BULK))
    bench.pass_all(Lane.INTERACTIVE)
    bench.pass_all(Lane.BULK)
    assert bulk.table is not None
    bench.drain()


@pytest.mark.parametrize("lane", Lane)
def test_thousands_that_wait_are_cancelled_at_once(lane: Lane) -> None:
    bench = _bench(num_blocks=64)
    sequences = [Sequence([index, index + 1], 8, lane, session=f"s{index % 5000}") for index in range(10_000)]
    started = time.perf_counter()
    for sequence in sequences:
        bench.scheduler.add(sequence)
    for _ in range(20):
        plan = bench.scheduler.plan(lane, lambda *_: [])
        for chunk in plan.chunks if plan else ():
            bench.scheduler.land(chunk, is_complete=False)
    for index in range(len(sequences)):
        bench.scheduler.end(sequences[index * 7919 % len(sequences)], FinishReason.CANCELLED)
    assert time.perf_counter() - started < 2.0
    assert all(sequence.end_reason is not None for sequence in sequences)
    assert (bench.scheduler.num_waiting(lane), bench.scheduler.num_running(lane)) == (0, 0)
    assert bench.scheduler.num_held_blocks == 0
    bench.scheduler.check_integrity()
