"""Draft sources against slow twins that search lists."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speculation.sources import EarlierAnswer, NGrams, Obedient

# The bytes of these run into each other: 256 looks like 1 when it is read one byte too late.
_TOKENS = st.lists(st.sampled_from([0, 1, 256, 65536, 2**24, 257]), max_size=24)


def _slow_ngrams(token_ids: list[int], max_tokens: int) -> list[int]:
    """The longest of the last 5 to 2 tokens that stood there before, the latest time, and what followed."""
    for length in (5, 4, 3, 2):
        last = token_ids[-length:]
        for start in range(len(token_ids) - length - 1, -1, -1):
            if len(last) == length and token_ids[start : start + length] == last:
                return token_ids[start + length : start + length + max_tokens]
    return []


@settings(derandomize=True, deadline=None, max_examples=400)
@given(
    corpus=_TOKENS,
    token_ids=_TOKENS,
    steps=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    count=st.integers(1, 8),
)
def test_ngrams_equal_a_search_of_lists_however_the_sequence_grows(
    corpus: list[int], token_ids: list[int], steps: list[int], count: int
) -> None:
    source = NGrams(corpus)
    known = 0
    for step in [*steps, len(token_ids)]:
        known = min(len(token_ids), known + step)
        assert source.propose(token_ids[:known], count) == _slow_ngrams(corpus + token_ids[:known], count)


def test_the_longest_match_wins_and_of_those_the_latest() -> None:
    source = NGrams()
    assert source.propose([1, 2, 3, 10, 2, 3, 20, 1, 2, 3], 2) == [10, 2]
    assert source.name == "ngram3"
    assert NGrams().propose([2, 3, 10, 2, 3, 20, 2, 3], 1) == [20]
    assert NGrams().propose([3, 10, 3], 1) == []


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_a_match_of_bytes_that_is_none_of_tokens_is_no_match(shift: int) -> None:
    """The bytes of the last two tokens do stand there before, but not where tokens begin."""
    moved = [token << 8 * shift for token in (5, 6)]
    token_ids = [*moved, 0, 9, 5, 6]
    assert _slow_ngrams(token_ids, 4) == []
    assert NGrams().propose(token_ids, 4) == []


def test_an_aligned_match_before_a_misaligned_one_is_found() -> None:
    token_ids = [5, 6, 7, 5 << 8, 6 << 8, 0, 9, 5, 6]
    assert NGrams().propose(token_ids, 1) == [7]


def test_a_match_may_overlap_what_it_is_compared_with() -> None:
    assert NGrams().propose([4] * 8, 6) == [4]
    assert NGrams().propose([1, 2, 1, 2, 1, 2], 6) == [1, 2]


def test_the_corpus_of_a_sequence_is_searched_behind_the_sequence_itself() -> None:
    assert NGrams([1, 2, 30]).propose([1, 2], 1) == [30]
    assert NGrams([1, 2, 30]).propose([1, 2, 40, 1, 2], 1) == [40]


@settings(derandomize=True, deadline=None)
@given(_TOKENS, _TOKENS, st.integers(0, 24), st.integers(1, 8))
def test_an_earlier_answer_is_proposed_as_long_as_it_comes_true(
    prompt: list[int], draft: list[int], num_generated: int, count: int
) -> None:
    source = EarlierAnswer(len(prompt), draft)
    generated = draft[:num_generated]
    assert source.propose(prompt + generated, count) == draft[len(generated) :][:count]
    assert source.propose([*prompt, *generated, 999], count) == []
    assert source.propose([*prompt, *generated, 999, *draft], count) == []


@settings(derandomize=True, deadline=None)
@given(
    drafts=st.lists(st.integers(0, 6), max_size=8),
    required=st.lists(st.sampled_from(b"ab"), max_size=6).map(bytes),
    num_generated=st.integers(0, 8),
)
def test_no_draft_contradicts_what_the_answer_must_begin_with(
    drafts: list[int], required: bytes, num_generated: int
) -> None:
    """However far the answer has come; and what cannot contradict it is left alone."""
    token_bytes = [b"", b"a", b"b", b"ab", b"ba", b"aab", b"c"]
    prompt = [6, 6]
    source = Obedient(EarlierAnswer(len(prompt), drafts), len(prompt), required, token_bytes)
    for count in range(num_generated + 1):
        generated, whole = drafts[:count], drafts[count:]
        if not _may_begin(generated, required, token_bytes):
            break
        proposed = source.propose(prompt + generated, 8)
        assert proposed == whole[: len(proposed)]
        assert _may_begin(generated + proposed, required, token_bytes)
        if len(proposed) < len(whole):
            assert not _may_begin(generated + whole[: len(proposed) + 1], required, token_bytes)


def _may_begin(tokens: list[int], required: bytes, token_bytes: list[bytes]) -> bool:
    """Whether an answer may begin with these tokens; with one without bytes only once nothing is required any more."""
    text = b""
    for token in tokens:
        if not token_bytes[token] and len(text) < len(required):
            return False
        text += token_bytes[token]
    return text.startswith(required) or required.startswith(text)
