"""How much is drafted follows what comes true and what rows cost."""

from collections.abc import Sequence as TokenList
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import PROFILES, Profile
from engine.scheduler.sequence import Load, Sequence
from engine.speculation.speculator import CostCurve, Speculator, Success, round_log2

_PROFILE = replace(PROFILES["completion"], max_drafts=7)


@dataclass
class _Source:
    """Always has something to say."""

    name: str = "always"
    cost_s: float = 0.0
    limit: int = 99
    behind_s: float = 0.0
    num_asked: int = 0
    num_closed: int = 0

    def propose(self, token_ids: TokenList[int], max_tokens: int) -> list[int]:
        self.num_asked += 1
        return [7] * min(max_tokens, self.limit)

    def catch_up_s(self, token_ids: TokenList[int]) -> float:
        return self.behind_s

    def close(self) -> None:
        self.num_closed += 1


def _sequence() -> Sequence:
    """A request that has generated its first token."""
    sequence = Sequence([1, 2], 100)
    sequence.token_ids.append(3)
    sequence.num_computed = 2
    return sequence


def _speculator(
    *sources: _Source, row_s: float = 0.0, pass_s: float = 1.0, profile: Profile = _PROFILE
) -> tuple[Speculator, Sequence]:
    """One sequence, on a machine where a pass costs so much, and every row so much more."""
    speculator, sequence = Speculator(profile), _sequence()
    for num_rows in (1, 2, 4, 8, 16):
        speculator.cost.record(num_rows, pass_s + row_s * num_rows)
    speculator.add(sequence, sources)
    return speculator, sequence


def _count_after(speculator: Speculator, sequence: Sequence, rate: float, num_passes: int = 100) -> int:
    """How many are drafted once each draft token has come true with this probability for a while."""
    random = Random(0)
    for _ in range(num_passes):
        num_drafted = len(speculator.propose(sequence, 99, Load()))
        num_accepted = next((n for n in range(num_drafted) if random.random() >= rate), num_drafted)
        speculator.record(sequence, num_drafted, num_accepted)
    return len(speculator.propose(sequence, 99, Load()))


@settings(derandomize=True, deadline=None)
@given(st.integers(1, 4096))
def test_a_count_is_rounded_to_the_closest_power_of_two(value: int) -> None:
    exponent = round_log2(value)
    assert 2 ** (exponent - 0.5) <= value * (1 + 1e-12)
    assert value <= 2 ** (exponent + 0.5) * (1 + 1e-12)


def test_between_measured_counts_the_cost_is_a_straight_line() -> None:
    curve = CostCurve()
    assert curve.estimate_s(4) == 0.0
    curve.record(2, 1.0)
    curve.record(8, 4.0)
    assert [curve.estimate_s(rows) for rows in (2, 4, 5, 8)] == pytest.approx([1.0, 2.0, 2.5, 4.0])


def test_beyond_what_is_measured_more_rows_cost_a_little_more() -> None:
    curve = CostCurve()
    curve.record(8, 4.0)
    assert curve.estimate_s(1) == curve.estimate_s(8) == 4.0
    assert 4.0 < curve.estimate_s(9) < curve.estimate_s(16) < 8.0


def test_the_cost_follows_the_machine() -> None:
    curve = CostCurve()
    curve.record(1, 10.0)
    for _ in range(40):
        curve.record(1, 1.0)
    assert curve.estimate_s(1) == pytest.approx(1.0, abs=0.01)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 512), st.floats(1e-4, 10.0)), min_size=1, max_size=20), st.integers(1, 512))
def test_between_measured_counts_an_estimate_lies_between_what_was_measured(
    measured: list[tuple[int, float]], asked: int
) -> None:
    curve = CostCurve()
    for num_rows, seconds in measured:
        curve.record(num_rows, seconds)
    estimate_s = curve.estimate_s(asked)
    times_s = [seconds for _, seconds in measured]
    assert estimate_s >= min(times_s) * (1 - 1e-9)
    buckets = [1 << round_log2(num_rows) for num_rows, _ in measured]
    if asked <= max(buckets):
        assert estimate_s <= max(times_s) * (1 + 1e-9)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=50))
def test_a_rate_is_a_probability(outcomes: list[tuple[int, int]]) -> None:
    success = Success()
    for num_drafted, num_accepted in outcomes:
        before = success.rate
        success.record(num_drafted, num_accepted)
        assert 0.0 <= success.rate <= 1.0
        assert success.rate > before or num_accepted < num_drafted
        assert success.rate < before or num_accepted > 0


def test_drafts_behind_the_first_wrong_one_are_no_failures() -> None:
    one, other = Success(), Success()
    one.record(7, 2)
    other.record(3, 2)
    assert one.rate == other.rate


def test_much_is_drafted_when_all_comes_true() -> None:
    assert _count_after(*_speculator(_Source(), row_s=0.02), rate=1.0) == 7


def test_nothing_is_drafted_when_nothing_comes_true_and_rows_are_costly() -> None:
    assert _count_after(*_speculator(_Source(), row_s=0.5), rate=0.0) == 0


def test_rows_decide_how_much_the_same_success_is_worth() -> None:
    counts = [_count_after(*_speculator(_Source(), row_s=row_s), rate=0.7) for row_s in (0.0, 0.05, 0.3, 3.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 7
    assert counts[-1] == 0
    assert 0 < counts[2] < 7


def test_before_anything_is_measured_all_is_drafted() -> None:
    speculator, sequence = Speculator(_PROFILE), _sequence()
    speculator.add(sequence, (_Source(),))
    assert len(speculator.propose(sequence, 99, Load())) == 7


@pytest.mark.parametrize("cost_s", [0.0, 0.2])
def test_a_source_that_was_given_up_gets_another_chance(cost_s: float) -> None:
    speculator, sequence = _speculator(_Source(cost_s=cost_s), row_s=0.2)
    num_fruitless = 0
    while num_drafted := len(speculator.propose(sequence, 99, Load())):
        speculator.record(sequence, num_drafted, 0)
        num_fruitless += 1
    assert 1 <= num_fruitless < 50
    num_silent = next((n for n in range(2000) if speculator.propose(sequence, 99, Load())), None)
    assert num_silent is not None, "never asked again"
    assert num_silent > 5


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_no_more_is_drafted_than_there_is_room_for(room: int, max_drafts: int, limit: int) -> None:
    profile = replace(_PROFILE, max_drafts=max_drafts)
    speculator, sequence = _speculator(_Source(limit=limit), profile=profile)
    assert len(speculator.propose(sequence, room, Load())) == min(room, max_drafts, limit)
    assert speculator.propose(sequence, -1, Load()) == []


def test_the_first_source_that_has_something_to_say_is_taken_and_counted() -> None:
    silent, first, second = _Source("silent", limit=0), _Source("first"), _Source("second")
    speculator, sequence = _speculator(silent, first, second, row_s=0.3)
    assert speculator.propose(sequence, 3, Load())
    assert (silent.num_asked, first.num_asked, second.num_asked) == (1, 1, 0)
    for _ in range(5):  # the first is always wrong
        speculator.record(sequence, 3, 0)
    assert speculator.propose(sequence, 3, Load())
    assert second.num_asked == 1


def test_a_source_that_costs_more_than_it_saves_is_not_even_asked() -> None:
    dear = _Source("dear", cost_s=2.0)
    speculator, sequence = _speculator(dear)
    assert speculator.propose(sequence, 5, Load()) == []
    assert dear.num_asked == 0


def test_a_source_that_costs_something_never_delays_the_first_token() -> None:
    dear, free = _Source("dear", cost_s=0.01), _Source("free")
    speculator, sequence = _speculator(dear, free)
    del sequence.token_ids[2:]
    assert speculator.propose(sequence, 5, Load())
    assert (dear.num_asked, free.num_asked) == (0, 1)
    sequence.token_ids.append(3)
    assert speculator.propose(sequence, 5, Load())
    assert (dear.num_asked, free.num_asked) == (1, 1)


@pytest.mark.parametrize(("behind_s", "is_asked"), [(20.0, True), (2000.0, False)])
def test_a_source_that_is_behind_is_asked_when_the_rest_of_the_answer_is_long_enough(
    behind_s: float, is_asked: bool
) -> None:
    source = _Source(cost_s=0.01, behind_s=behind_s)
    speculator, sequence = _speculator(source)
    assert bool(speculator.propose(sequence, 7, Load())) == is_asked
    assert bool(source.num_asked) == is_asked
    sequence.max_tokens = len(sequence.token_ids) + 1
    assert speculator.propose(sequence, 7, Load()) == []


def test_sources_are_closed_once_when_their_sequence_ends() -> None:
    one, other = _Source("one"), _Source("other")
    speculator, sequence = _speculator(one, other)
    for _ in range(2):
        speculator.remove(sequence)
    assert (one.num_closed, other.num_closed) == (1, 1)


def test_success_belongs_to_the_source_and_outlives_a_sequence() -> None:
    speculator, sequence = _speculator(_Source(), row_s=0.5)
    assert _count_after(speculator, sequence, rate=0.0, num_passes=20) == 0
    speculator.remove(sequence)
    assert speculator.propose(sequence, 5, Load()) == []
    other = _sequence()
    speculator.add(other, (_Source(),))
    assert speculator.propose(other, 5, Load()) == []


def test_the_more_sequences_share_a_pass_the_less_is_drafted() -> None:
    """A pass over n rows takes 10 + n: alone a token is worth 11, beside 19 others 1.5, and its row costs 1."""
    counts = []
    for num_sequences in (1, 4, 20, 1000):
        speculator, sequence = _speculator(_Source())
        for num_rows in (1, 2, 4, 8, 16, 32, 1024):
            for _ in range(50):
                speculator.cost.record(num_rows, 10.0 + num_rows)
        load = Load(num_sequences, num_sequences)
        for _ in range(100):
            num_drafted = len(speculator.propose(sequence, 99, load))
            speculator.record(sequence, num_drafted, min(num_drafted, 1))
        counts.append(len(speculator.propose(sequence, 99, load)))
    assert counts[0] >= counts[1] >= counts[2] >= counts[3] == 0
    assert counts[0] > counts[2]


def test_beside_others_nothing_is_drafted_before_it_is_known_what_a_pass_without_drafts_costs() -> None:
    """Else drafts would hide it for ever: of 48 requests' passes only those of 48 and their drafts would be known."""
    speculator, sequence = Speculator(_PROFILE), _sequence()
    speculator.add(sequence, (_Source(),))
    load = Load(48, 48)
    assert speculator.propose(sequence, 99, load) == []
    speculator.cost.record(256, 1.0)  # prompts
    assert speculator.propose(sequence, 99, load) == []
    assert len(speculator.propose(sequence, 99, Load())) == 7
    speculator.cost.record(48, 1.0)
    assert len(speculator.propose(sequence, 99, load)) == 7
