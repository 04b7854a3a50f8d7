"""The pool counts: every block is free, or held so many times."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.pool import NULL_BLOCK, BlockPool


def test_all_blocks_but_the_null_block_are_given_out_once() -> None:
    pool = BlockPool(num_blocks=5, block_tokens=16)
    assert (pool.num_blocks, pool.num_free) == (4, 4)
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="1 blocks wanted, 0 are free"):
        pool.allocate(1)


def test_more_than_there_is_leaves_the_pool_as_it_was() -> None:
    pool = BlockPool(num_blocks=5, block_tokens=16)
    with pytest.raises(ValueError, match="5 blocks wanted, 4 are free"):
        pool.allocate(5)
    assert pool.num_free == 4


def test_the_last_given_back_is_the_next_given_out() -> None:
    pool = BlockPool(num_blocks=5, block_tokens=16)
    _, second, third = pool.allocate(3)
    assert pool.release(third)
    assert pool.release(second)
    assert pool.allocate(2) == [second, third]


@pytest.mark.parametrize(("num_blocks", "block_tokens"), [(1, 16), (0, 16), (2, 0)])
def test_a_pool_that_holds_nothing_is_refused(num_blocks: int, block_tokens: int) -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        BlockPool(num_blocks, block_tokens)


def test_what_nobody_holds_can_neither_be_released_nor_shared() -> None:
    pool = BlockPool(num_blocks=3, block_tokens=16)
    (block,) = pool.allocate(1)
    assert pool.release(block)
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.release(block)
    with pytest.raises(ValueError, match="is free and cannot be shared"):
        pool.retain(block)
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.release(NULL_BLOCK)
    pool.check_integrity()


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["allocate", "retain", "release"]), st.integers(0, 7)), max_size=60))
def test_counts_are_those_of_a_multiset(steps: list[tuple[str, int]]) -> None:
    pool = BlockPool(num_blocks=8, block_tokens=1)
    held: Counter[int] = Counter()
    for step, number in steps:
        if step == "allocate":
            blocks = pool.allocate(min(number, pool.num_free))
            assert not set(blocks) & set(held)
            held.update(blocks)
        elif block := next((block for block in sorted(held) if block >= number), None):
            if step == "retain":
                pool.retain(block)
                held[block] += 1
            else:
                held[block] -= 1
                assert pool.release(block) == (held[block] == 0)
                held += Counter()  # drops what is at zero
        pool.check_integrity()
        assert pool.num_free == pool.num_blocks - len(held)
        assert {block: pool.num_references(block) for block in held} == held
