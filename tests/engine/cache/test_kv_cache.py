"""The cache under random use, over a memory that shows what was written and spoils what was given back."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.cache.kv_cache import BlockTable, CacheLimits
from tests.engine.cache.fakes import CLEARED, POISON, UNFINISHED, ProbedCache, common_start

_TOKEN = st.sampled_from([-1, -2, 0])  # -1 and -2 have the same hash in CPython


@dataclass(eq=False)
class _Running:
    table: BlockTable
    token_ids: list[int]
    max_tokens: int
    num_computed: int


class _RandomUse(RuleBasedStateMachine):
    """Several sequences at once in a pool that is too small for them."""

    @initialize(num_blocks=st.integers(3, 14), block_tokens=st.integers(1, 4), max_sessions=st.integers(0, 3))
    def begin(self, num_blocks: int, block_tokens: int, max_sessions: int) -> None:
        self.probed = ProbedCache(num_blocks, block_tokens, CacheLimits(max_sessions, max_protected_share=0.5))
        self.cache, self.pool, self.size = self.probed.cache, self.probed.pool, block_tokens
        self.num_protected = num_blocks // 2 if max_sessions else 0
        self.running: list[_Running] = []
        self.history: list[list[int]] = [[]]
        self.kept: list[int] = []  # whole blocks of the latest session, which bulk work must leave alone

    @rule(
        known=st.integers(0, 99),
        num_known=st.integers(0, 12),
        new=st.lists(_TOKEN, min_size=1, max_size=6),
        growth=st.integers(0, 8),
        may_take_sessions=st.booleans(),
    )
    def reserve(self, known: int, num_known: int, new: list[int], growth: int, may_take_sessions: bool) -> None:
        token_ids = self.history[known % len(self.history)][:num_known] + new
        max_tokens = len(token_ids) + growth
        paths = self.probed.cached_paths()
        hit = max((common_start(path, token_ids[:-1]) for path in paths), default=0)
        num_shared = hit // self.size
        count = self.cache.num_blocks_for(max_tokens) - num_shared
        room = self.pool.num_free + self.cache.num_cached - self.num_idle_on(token_ids[: num_shared * self.size])
        least_room = room if may_take_sessions else room - self.num_protected
        table = self.cache.reserve(token_ids, max_tokens, may_take_sessions)
        if table is None:
            assert count > least_room, "there was room"
            assert self.probed.cached_paths() == paths
            return
        assert count <= room
        is_tail_in_the_way = count >= least_room and table.num_cached_tokens == num_shared * self.size
        assert table.num_cached_tokens == hit or is_tail_in_the_way
        assert table.num_cached_tokens < len(token_ids)
        slots = self.probed.memory.read(table.blocks, len(table.blocks) * self.size)
        # with a part of a block comes what stands behind it: anything that has been written
        next_block = -(-table.num_cached_tokens // self.size) * self.size
        assert POISON not in slots[table.num_cached_tokens : next_block]
        assert set(slots[next_block:]) <= {CLEARED}
        self.kept = [] if may_take_sessions else self.kept
        self.history.append(token_ids)
        self.running.append(_Running(table, list(token_ids), max_tokens, table.num_cached_tokens))

    def num_idle_on(self, token_ids: list[int]) -> int:
        """Blocks of the path to these tokens that only the index holds."""
        nodes = self.cache.index.match("model", token_ids).nodes
        return sum(self.pool.num_references(node.block) == 1 for node in nodes)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), count=st.integers(1, 9))
    def compute(self, which: int, count: int) -> None:
        running = self.running[which % len(self.running)]
        end = min(running.num_computed + count, len(running.token_ids))
        self.probed.compute(running.table, running.token_ids, running.num_computed, end)
        running.num_computed = end

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), tokens=st.lists(_TOKEN, min_size=1, max_size=5))
    def generate(self, which: int, tokens: list[int]) -> None:
        running = self.running[which % len(self.running)]
        running.token_ids += tokens[: running.max_tokens - len(running.token_ids)]

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def scribble(self, which: int) -> None:
        """A pass that is not complete, or drafts that are wrong: anything may stand behind what is computed."""
        running = self.running[which % len(self.running)]
        self.probed.assert_private(running.table, running.num_computed, running.max_tokens)
        for position in range(running.num_computed, running.max_tokens):
            self.probed.memory.write(running.table.blocks, position, UNFINISHED)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def publish(self, which: int) -> None:
        running = self.running[which % len(self.running)]
        self.cache.publish(running.table, running.token_ids, running.num_computed)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), session=st.sampled_from(["", "a", "b", "c"]))
    def release(self, which: int, session: str) -> None:
        running = self.running.pop(which % len(self.running))
        computed = running.token_ids[: running.num_computed]
        self.cache.release(running.table, running.token_ids, running.num_computed, session)
        assert max((common_start(path, computed) for path in self.probed.cached_paths()), default=0) == len(computed)
        if session:
            is_protected = self.cache.num_blocks_for(len(computed)) <= self.num_protected
            self.kept = computed[: len(computed) // self.size * self.size] if is_protected else []
        self.history.append(computed)
        with pytest.raises(ValueError, match="given back twice"):
            self.cache.release(running.table, running.token_ids, running.num_computed, session)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.kept = []
        assert self.cache.num_cached == 0

    @invariant()
    def everything_is_right(self) -> None:
        self.probed.assert_consistent()
        for running in self.running:
            self.probed.assert_computed(running.table, running.token_ids, running.num_computed)
        assert self.cache.num_used == len({block for running in self.running for block in running.table.blocks})
        assert self.cache.num_used + self.cache.num_cached + self.pool.num_free == self.pool.num_blocks
        assert max((common_start(path, self.kept) for path in self.probed.cached_paths()), default=0) == len(self.kept)

    def teardown(self) -> None:
        for running in self.running:
            self.cache.release(running.table, running.token_ids, running.num_computed)
        assert self.cache.num_used == 0
        self.cache.clear()
        assert self.pool.num_free == self.pool.num_blocks
        self.probed.assert_consistent()


TestRandomUse = _RandomUse.TestCase
TestRandomUse.settings = settings(derandomize=True, deadline=None, max_examples=150, stateful_step_count=40)


def test_what_extends_a_cached_sequence_computes_the_extension_alone() -> None:
    probed = ProbedCache(num_blocks=20, block_tokens=4)
    prompt = list(range(30))
    assert probed.run(prompt) == 0
    assert probed.run([*prompt, 100, 101]) == 30
    assert probed.run([*prompt[:17], 200]) == 17
    probed.assert_consistent()


def test_a_hit_is_never_all_tokens() -> None:
    """Pitfall 8: the last token's hidden state is wanted, so it is computed even where it is cached."""
    probed = ProbedCache(num_blocks=8, block_tokens=4)
    assert [probed.run(list(range(8))) for _ in range(3)] == [0, 7, 7]
    assert [probed.run([5]) for _ in range(2)] == [0, 0]
    probed.assert_consistent()


def test_ending_twice_frees_once() -> None:
    """Pitfall 1: the second of two ends is refused, whoever holds the blocks by then."""
    probed = ProbedCache(num_blocks=4, block_tokens=2)
    table = probed.cache.reserve([1, 2, 3], 8)
    assert table is not None
    probed.cache.release(table, [1, 2, 3], 0)
    other = probed.cache.reserve([4, 5, 6], 8)
    assert other is not None
    with pytest.raises(ValueError, match="given back twice"):
        probed.cache.release(table, [1, 2, 3], 0)
    assert probed.cache.num_used == 4
    probed.assert_consistent()


def test_only_computed_tokens_are_published() -> None:
    """Pitfall 3: neither whole blocks nor the last partial one hold more than what every layer has written."""
    probed = ProbedCache(num_blocks=8, block_tokens=2)
    token_ids = [1, 2, 3, 4, 5, 6, 7]
    table = probed.cache.reserve(token_ids, 10)
    assert table is not None
    probed.compute(table, token_ids, 0, 5)
    probed.memory.write(table.blocks, 5, UNFINISHED)
    probed.cache.publish(table, token_ids, 5)
    assert probed.cached_paths() == [(1, 2), (1, 2, 3, 4)]
    probed.cache.release(table, token_ids, 5)
    assert max(probed.cached_paths(), key=len) == (1, 2, 3, 4, 5)
    probed.assert_consistent()


def test_two_continuations_of_one_partial_block_do_not_meet() -> None:
    """Pitfall 5: a partial block is copied before anything is written behind it."""
    probed = ProbedCache(num_blocks=12, block_tokens=4)
    probed.run([1, 2, 3, 4, 5, 6])
    prompts = [[1, 2, 3, 4, 5, 6, token] for token in (7, 8)]
    tables = [probed.cache.reserve(prompt, 10) for prompt in prompts]
    for table, prompt in zip(tables, prompts, strict=True):
        assert table is not None
        assert table.num_cached_tokens == 6
        probed.compute(table, prompt, 6, 7)
    for table, prompt in zip(tables, prompts, strict=True):
        assert table is not None
        probed.assert_computed(table, prompt, 7)
        probed.cache.release(table, prompt, 7)
    assert {path for path in probed.cached_paths() if len(path) > 4} == set(map(tuple, prompts))
    probed.assert_consistent()


def test_the_same_tokens_computed_twice_at_once_are_kept_once() -> None:
    probed = ProbedCache(num_blocks=8, block_tokens=2)
    token_ids = [1, 2, 3]
    one, other = (probed.cache.reserve(token_ids, 4) for _ in range(2))
    assert one is not None
    assert other is not None
    for table in (one, other):
        probed.compute(table, token_ids, 0, 3)
        probed.cache.publish(table, token_ids, 3)
    assert one.blocks[0] == other.blocks[0]
    assert probed.cache.num_used == 3
    probed.assert_computed(other, token_ids, 3)
    probed.assert_consistent()


def test_equal_hashes_and_equal_blocks_behind_other_parents_hit_nothing() -> None:
    """Pitfall 6, with the content behind it: the hashes of these blocks are equal, the tokens are not."""
    assert hash((-1, 7)) == hash((-2, 7))
    probed = ProbedCache(num_blocks=16, block_tokens=2)
    assert probed.run([-1, 7, 3, 3, 9]) == 0
    assert probed.run([-2, 7, 3, 3, 9]) == 0
    assert probed.run([3, 3, 9]) == 0
    assert probed.run([-2, 7, 3, 3, 9]) == 4
    probed.assert_consistent()


def test_a_parent_is_never_evicted_before_its_child() -> None:
    """Pitfall 7: memory that no match can reach any more would be lost."""
    probed = ProbedCache(num_blocks=8, block_tokens=2)
    probed.run([1, 1, 2, 2, 3, 3, 4, 4])
    probed.run([1, 1, 2, 2, 9, 9])
    for num_blocks in range(4, 9):
        table = probed.cache.reserve([0], num_blocks * 2)
        assert table is not None
        probed.assert_consistent()
        paths = set(probed.cached_paths())
        assert {path[:-2] for path in paths if len(path) > 2} <= paths
        assert len(paths) == 8 - num_blocks
        probed.cache.release(table, [0], 0)


def test_a_private_table_takes_nothing_and_leaves_nothing() -> None:
    probed = ProbedCache(num_blocks=8, block_tokens=2)
    token_ids = [1, 2, 3, 4, 5]
    assert probed.run(token_ids) == 0
    paths = probed.cached_paths()
    longer = [*token_ids, 6, 7]
    table = probed.cache.reserve(longer, 8, is_private=True)
    assert table is not None
    assert table.num_cached_tokens == 0
    probed.compute(table, longer, 0, 7)
    probed.cache.publish(table, longer, 7)
    probed.cache.release(table, longer, 7, session="s")
    assert (probed.cached_paths(), probed.cache.num_used) == (paths, 0)
    assert probed.run(token_ids) == 4
    probed.assert_consistent()


def test_what_was_used_longest_ago_is_evicted_first() -> None:
    probed = ProbedCache(num_blocks=6, block_tokens=2)
    for token in (1, 2, 3):
        probed.run([token] * 4)
    probed.run([1] * 4)
    assert probed.cache.reserve([0], 8) is not None
    assert set(probed.cached_paths()) == {(1, 1), (1, 1, 1, 1)}


def test_the_tail_gives_way_where_its_block_is_needed() -> None:
    probed = ProbedCache(num_blocks=2, block_tokens=4)
    probed.run([1, 2, 3, 4, 5, 6])
    table = probed.cache.reserve([1, 2, 3, 4, 5, 6], 8)
    assert table is not None
    assert table.num_cached_tokens == 4
    probed.assert_consistent()


def _with_sessions(**lengths: int) -> ProbedCache:
    """A full cache of 8 blocks of 2 tokens, in which sessions have left so many blocks, one after the other."""
    probed = ProbedCache(num_blocks=8, block_tokens=2, limits=CacheLimits(max_sessions=2, max_protected_share=0.5))
    for name, num_blocks in lengths.items():
        probed.run([ord(name)] * (2 * num_blocks), session=name)
    probed.run([0] * (2 * (8 - sum(lengths.values()))))
    assert probed.pool.num_free == 0
    return probed


def test_what_a_session_has_left_is_evicted_last() -> None:
    probed = _with_sessions(a=2, b=2)
    assert probed.cache.reserve([9], 10, may_take_sessions=False) is None
    assert probed.cache.reserve([9], 8, may_take_sessions=False) is not None
    assert {path[0] for path in probed.cached_paths()} == {ord("a"), ord("b")}
    assert probed.cache.reserve([9], 2, may_take_sessions=False) is None
    assert probed.cache.reserve([9], 4) is not None
    assert {path[0] for path in probed.cached_paths()} == {ord("b")}


def test_sessions_are_protected_within_limits() -> None:
    """Pitfall 7: if everything could be protected, nothing could be admitted."""
    too_many = _with_sessions(a=1, b=1, c=1)
    assert too_many.cache.reserve([9], 14, may_take_sessions=False) is None
    assert too_many.cache.reserve([9], 12, may_take_sessions=False) is not None
    assert {path[0] for path in too_many.cached_paths()} == {ord("b"), ord("c")}
    too_long = _with_sessions(a=5)
    assert too_long.cache.reserve([9], 16, may_take_sessions=False) is not None


def test_a_session_that_is_used_again_is_the_latest() -> None:
    probed = _with_sessions(a=1, b=1)
    probed.run([ord("a")] * 2, session="a")
    probed.run([ord("c")] * 2, session="c")
    assert probed.cache.reserve([9], 12, may_take_sessions=False) is not None
    assert {path[0] for path in probed.cached_paths()} == {ord("a"), ord("c")}


def test_what_has_been_evicted_of_a_session_is_not_protected_any_more() -> None:
    probed = ProbedCache(num_blocks=8, block_tokens=2)
    probed.run([1] * 6, session="a")
    large, small = (probed.cache.reserve([9], num_tokens) for num_tokens in (10, 2))
    assert large is not None
    assert small is not None
    assert probed.cached_paths() == [(1, 1), (1, 1, 1, 1)]
    probed.cache.release(large, [9], 0)
    assert probed.cache.reserve([9], 10, may_take_sessions=False) is not None


def test_a_session_keeps_its_last_block_although_another_request_left_the_same() -> None:
    probed = ProbedCache(num_blocks=6, block_tokens=4)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    probed.run(prompt)
    probed.run(prompt, session="a")
    probed.run([0] * 16)
    assert probed.cache.reserve([9], 16, may_take_sessions=False) is not None
    assert probed.cached_paths() == [(1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7)]


def test_clear_forgets_all_that_is_not_in_use() -> None:
    probed = ProbedCache(num_blocks=8, block_tokens=2)
    probed.run([1, 2, 3, 4, 5], session="a")
    table = probed.cache.reserve([1, 2, 9], 4)
    assert table is not None
    probed.cache.clear()
    assert probed.cached_paths() == [(1, 2)]
    assert (probed.cache.num_used, probed.cache.num_cached) == (2, 0)
    probed.assert_consistent()
