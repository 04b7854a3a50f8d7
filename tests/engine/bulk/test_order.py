"""The order of prompts, against what it is for: nothing lost, and as much shared as can be."""

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bulk.order import MIN_SHARED_TOKENS, Order, awaited_start, key_of, token_ids_of

_TOKENS = st.integers(0, 2**31 - 1)
_SETTINGS = settings(derandomize=True, deadline=None)


@st.composite
def _prompts(draw: st.DrawFn) -> list[list[int]]:
    """Some of which begin as others do, in all lengths around what is worth sharing."""
    prompts: list[list[int]] = []
    for _ in range(draw(st.integers(0, 14))):
        stem = draw(st.sampled_from(prompts)) if prompts and draw(st.booleans()) else []
        kept = draw(st.integers(0, len(stem)))
        new = draw(st.integers(0, 2 * MIN_SHARED_TOKENS))
        prompts.append(stem[:kept] + [draw(st.sampled_from([0, 1, 255, 256, 2**31 - 1]))] * new)
    return prompts


def _common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _taken(order: Order) -> list[int]:
    numbers = []
    while (number := order.take()) is not None:
        numbers.append(number)
    assert len(order) == 0
    return numbers


def _added(prompts: list[list[int]], *, is_sorted: bool = True) -> Order:
    order = Order(is_sorted=is_sorted)
    for number, prompt in enumerate(prompts):
        order.add(key_of(prompt), number)
    assert len(order) == len(prompts)
    return order


@_SETTINGS
@given(st.lists(_TOKENS), st.lists(_TOKENS))
def test_keys_are_ordered_as_tokens_are(one: list[int], other: list[int]) -> None:
    assert token_ids_of(key_of(one)) == one
    assert (key_of(one) < key_of(other)) == (one < other)


def _num_shared(prompts: list[list[int]]) -> int:
    """Tokens that each finds in the one before, where they are worth it."""
    counts = (_common(one, other) for one, other in pairwise(prompts))
    return sum(count for count in counts if count >= MIN_SHARED_TOKENS)


@_SETTINGS
@given(_prompts())
def test_everything_is_taken_once_and_shares_as_much_as_sorted_prompts_do(prompts: list[list[int]]) -> None:
    numbers = _taken(_added(prompts))
    assert sorted(numbers) == list(range(len(prompts)))
    assert _num_shared([prompts[number] for number in numbers]) == _num_shared(sorted(prompts))


@_SETTINGS
@given(_prompts())
def test_groups_come_by_their_longest_member(prompts: list[list[int]]) -> None:
    groups: list[list[list[int]]] = []
    for number in _taken(_added(prompts)):
        prompt = prompts[number]
        if groups and groups[-1][-1][:MIN_SHARED_TOKENS] == prompt[:MIN_SHARED_TOKENS]:
            groups[-1].append(prompt)
        else:
            groups.append([prompt])
    longest = [max(map(len, group)) for group in groups]
    assert longest == sorted(longest, reverse=True)
    assert all(group == sorted(group) for group in groups)


@_SETTINGS
@given(_prompts())
def test_unsorted_is_the_order_of_arrival(prompts: list[list[int]]) -> None:
    assert _taken(_added(prompts, is_sorted=False)) == list(range(len(prompts)))


@_SETTINGS
@given(_prompts(), st.randoms(use_true_random=False))
def test_prompts_come_at_any_time_and_wait_for_what_is_computed(prompts: list[list[int]], pick: random.Random) -> None:
    order, waiting, taken = Order(), dict[int, list[int]](), []
    arriving = list(enumerate(prompts))
    while arriving or waiting:
        for _ in range(pick.randrange(4)):
            if arriving:
                number, prompt = arriving.pop()
                waiting[number] = prompt
                order.add(key_of(prompt), number)
        computing = [(prompts[number], pick.randrange(len(prompts[number]) + 1)) for number in taken[-2:]]
        starts = [start for prompt, count in computing if (start := awaited_start(key_of(prompt), count))]
        free = {n for n, prompt in waiting.items() if not any(key_of(prompt).startswith(start) for start in starts)}
        found = order.take(starts)
        assert (found in free) if free else found is None
        if found is not None:
            del waiting[found]
            taken.append(found)
        assert len(order) == len(waiting)
    assert sorted(taken) == list(range(len(prompts)))


def test_only_what_is_worth_it_is_awaited() -> None:
    prompt = list(range(40))
    key = key_of(prompt)
    assert awaited_start(key, 0) == key_of(prompt[:MIN_SHARED_TOKENS])
    assert awaited_start(key, MIN_SHARED_TOKENS - 1) == key_of(prompt[:MIN_SHARED_TOKENS])
    assert awaited_start(key, MIN_SHARED_TOKENS) == key_of(prompt[: MIN_SHARED_TOKENS + 1])
    assert awaited_start(key, 39) == key
    assert awaited_start(key, 40) is None
    assert awaited_start(key_of(prompt[: MIN_SHARED_TOKENS - 1]), 0) is None


def test_a_group_that_is_begun_goes_on_before_others() -> None:
    same = list(range(MIN_SHARED_TOKENS))
    order = Order()
    order.add(key_of([*same, 1]), 1)
    order.add(key_of([*same, 3]), 3)
    assert order.take() == 1
    order.add(key_of([7] * 100), 9)
    order.add(key_of([*same, 2]), 2)
    assert [order.take(), order.take(), order.take()] == [2, 3, 9]
