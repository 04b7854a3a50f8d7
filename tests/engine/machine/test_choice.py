from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoint.catalogue import load_catalogue
from engine.config import EngineConfig
from engine.machine.choice import MAX_SUGGESTION_MS, Verdict, choose, judge
from engine.machine.predict import Rates
from tests.support.machine import EXPERIMENTAL, FAST, LARGE, SLOW, SMALL, rates

CATALOGUE = load_catalogue()
CONFIG = EngineConfig()
PLENTY = 64 * 10**9


def _verdicts(known: Rates | None, config: EngineConfig = CONFIG, free_bytes: int = PLENTY) -> dict[str, Verdict]:
    return {name: judge(entry, config, known, free_bytes) for name, entry in CATALOGUE.items()}


def _chosen(known: Rates | None, config: EngineConfig = CONFIG, free_bytes: int = PLENTY) -> str:
    return choose(list(_verdicts(known, config, free_bytes).values())).entry.name


def test_the_largest_that_is_quick_enough() -> None:
    assert (_chosen(SLOW), _chosen(FAST)) == (SMALL, LARGE)
    assert _verdicts(SLOW)[LARGE].reason == "slower than 500 ms"
    assert _verdicts(FAST)[LARGE].reason == ""


def test_the_limit_is_exactly_that() -> None:
    took_ms = _verdicts(SLOW)[LARGE].predicted_ms
    assert took_ms is not None
    for slack, name in ((0.999, LARGE), (1.001, SMALL)):
        factor = slack * MAX_SUGGESTION_MS / took_ms  # of the time
        assert _chosen(rates(25.0 / factor, layer_us=200.0 * factor)) == name
    assert MAX_SUGGESTION_MS == 500


def test_the_precision_of_the_settings_counts() -> None:
    assert _chosen(SLOW, replace(CONFIG, precision="int4")) == LARGE
    assert _chosen(rates(40.0)) == LARGE
    assert _chosen(rates(40.0), replace(CONFIG, precision="exact")) == SMALL


def test_the_largest_that_has_room() -> None:
    assert (_chosen(FAST, free_bytes=9 * 10**9), _chosen(FAST, free_bytes=8 * 10**9)) == (LARGE, SMALL)
    assert _verdicts(FAST, free_bytes=7 * 10**9)[LARGE].reason == "needs 4.1 GB of memory, 3.5 GB are allowed"
    assert _chosen(FAST, replace(CONFIG, max_memory_mb=8000), free_bytes=10**9) == LARGE
    assert _chosen(FAST, replace(CONFIG, max_memory_mb=1500)) == SMALL


@pytest.mark.parametrize("known", [None, rates(0.001)])
def test_the_smallest_when_none_fits_or_nothing_is_known(known: Rates | None) -> None:
    assert _chosen(known) == SMALL


def test_an_experimental_model_is_never_taken() -> None:
    assert _verdicts(FAST)[EXPERIMENTAL].reason == "experimental"
    assert _chosen(rates(0.001), free_bytes=0) == SMALL


@given(st.floats(0.01, 1000), st.floats(0.1, 5000), st.integers(0, 10**11), st.floats(1.0, 10.0))
@settings(derandomize=True, max_examples=200)
def test_a_better_machine_never_gets_a_smaller_model(
    gb: float, layer_us: float, free_bytes: int, factor: float
) -> None:
    worse = CATALOGUE[_chosen(rates(gb, layer_us), free_bytes=free_bytes)]
    better = CATALOGUE[_chosen(rates(gb * factor, layer_us / factor), free_bytes=int(free_bytes * factor))]
    assert better.num_parameters >= worse.num_parameters
