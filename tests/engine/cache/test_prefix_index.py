"""The index against its slow twin: a list of all inserted sequences, searched one by one."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.prefix_index import Match, Node, PrefixIndex, common_length
from tests.engine.cache.fakes import common_start, path_tokens

_BLOCK_TOKENS = 3
_NAMESPACES = ("bf16", "f32")
# -1 and -2 have the same hash in CPython, and so have the tuples of them
_TOKEN_IDS = st.lists(st.sampled_from([-1, -2, 0]), max_size=11)


def _insert(index: PrefixIndex, namespace: str, token_ids: list[int], block: int = 0) -> Node:
    """Publish a sequence as the cache does: whole blocks, then what is left unless some block contains it."""
    node = index.root(namespace)
    for start in range(0, len(token_ids), index.block_tokens):
        tokens = tuple(token_ids[start : start + index.block_tokens])
        sibling, length = node.closest_child(tokens)
        if sibling is not None and length == len(tokens):
            node = sibling
            continue
        if sibling is not None and length == len(sibling.token_ids):
            index.remove(sibling)  # the new one contains it
        node = index.insert(node, tokens, block)
    return node


def _num_matched(match: Match) -> int:
    return sum(len(node.token_ids) for node in match.nodes) + match.num_tail_tokens


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    inserted=st.lists(st.tuples(st.sampled_from(_NAMESPACES), _TOKEN_IDS), max_size=12),
    asked=st.lists(st.tuples(st.sampled_from(_NAMESPACES), _TOKEN_IDS), min_size=1, max_size=6),
)
def test_a_match_is_the_longest_common_start_to_the_token(
    inserted: list[tuple[str, list[int]]], asked: list[tuple[str, list[int]]]
) -> None:
    index = PrefixIndex(_BLOCK_TOKENS)
    for namespace, token_ids in inserted:
        _insert(index, namespace, token_ids)
        index.check_integrity()
    for namespace, token_ids in asked + inserted:
        match = index.match(namespace, token_ids)
        longest = max((common_start(other, token_ids) for name, other in inserted if name == namespace), default=0)
        assert _num_matched(match) == longest
        _assert_is_a_path(match, token_ids)


def _assert_is_a_path(match: Match, token_ids: list[int]) -> None:
    """Whole blocks one behind the other, and a tail behind the last: parents are what they are said to be."""
    assert all(len(node.token_ids) == _BLOCK_TOKENS for node in match.nodes)
    deepest = match.tail or (match.nodes[-1] if match.nodes else None)
    if deepest is not None:
        assert common_start(path_tokens(deepest), token_ids) == _num_matched(match)
    if match.tail is not None:
        assert match.num_tail_tokens >= 1
        assert match.tail.parent is not None
        assert path_tokens(match.tail.parent) == tuple(token_ids[: len(match.nodes) * _BLOCK_TOKENS])


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(_TOKEN_IDS, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_leaves_can_be_removed_in_any_order(sequences: list[list[int]], random: Random) -> None:
    index = PrefixIndex(_BLOCK_TOKENS)
    for token_ids in sequences:
        _insert(index, "bf16", token_ids)
    while index.leaves:
        leaf = random.choice(index.leaves)
        path = list(path_tokens(leaf))
        index.remove(leaf)
        index.check_integrity()
        left = [path_tokens(node) for node in index]
        longest = max((common_start(other, path) for other in left), default=0)
        assert _num_matched(index.match("bf16", path)) == longest
    assert list(index) == []


def test_equal_hashes_are_no_collision() -> None:
    """Pitfall 6: tokens are compared, not their hashes."""
    one, other = (-1, 5, 5), (-2, 5, 5)
    assert hash(one) == hash(other)
    index = PrefixIndex(_BLOCK_TOKENS)
    _insert(index, "bf16", list(one), block=1)
    assert _num_matched(index.match("bf16", list(other))) == 0
    _insert(index, "bf16", list(other), block=2)
    assert [index.match("bf16", list(tokens)).nodes[0].block for tokens in (one, other)] == [1, 2]


def test_equal_blocks_behind_different_parents_are_no_collision() -> None:
    """Pitfall 6: the same three tokens mean something else behind other ones."""
    index = PrefixIndex(_BLOCK_TOKENS)
    _insert(index, "bf16", [-1, 5, 5, 7, 7, 7], block=1)
    assert _num_matched(index.match("bf16", [-2, 5, 5, 7, 7, 7])) == 0
    assert _num_matched(index.match("bf16", [7, 7, 7])) == 0
    leaf = _insert(index, "bf16", [-2, 5, 5, 7, 7, 7], block=2)
    assert index.match("bf16", [-2, 5, 5, 7, 7, 7]).nodes[1] is leaf


def test_namespaces_share_nothing() -> None:
    """Pitfall 6: what another model, precision or adapter computed is something else."""
    index = PrefixIndex(_BLOCK_TOKENS)
    _insert(index, "bf16", [1, 2, 3, 4])
    assert _num_matched(index.match("f32", [1, 2, 3, 4])) == 0
    assert _num_matched(index.match("bf16", [1, 2, 3, 4])) == 4


def test_the_closest_sibling_is_found_among_many() -> None:
    index = PrefixIndex(_BLOCK_TOKENS)
    for token in range(0, 1000, 2):
        _insert(index, "bf16", [token, token, token])
    assert _num_matched(index.match("bf16", [500, 500, 1])) == 2
    assert _num_matched(index.match("bf16", [500, 501])) == 1
    assert _num_matched(index.match("bf16", [501, 500])) == 0
    assert [child.token_ids[0] for child in index.root("bf16").children] == list(range(0, 1000, 2))


def test_a_match_marks_what_it_has_used() -> None:
    index = PrefixIndex(_BLOCK_TOKENS)
    old = _insert(index, "bf16", [1, 1, 1, 2])
    new = _insert(index, "bf16", [3, 3])
    assert old.last_use < new.last_use
    index.match("bf16", [1, 1, 1, 2, 9])
    assert old.parent is not None
    assert old.last_use == old.parent.last_use > new.last_use


def test_integrity_notices_a_continued_partial_block() -> None:
    index = PrefixIndex(_BLOCK_TOKENS)
    partial = index.insert(index.root("bf16"), (1, 2), 1)
    index.check_integrity()
    index.insert(partial, (3,), 2)
    with pytest.raises(AssertionError, match="a partial block is continued"):
        index.check_integrity()


@settings(derandomize=True, deadline=None)
@given(_TOKEN_IDS, _TOKEN_IDS)
def test_common_length_counts_tokens(one: list[int], other: list[int]) -> None:
    assert common_length(one, other) == common_start(one, other)
    assert common_length(tuple(one), tuple(other)) == common_start(one, other)
