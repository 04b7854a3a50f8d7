"""Batch sizes from times, measured and made up."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.bulk import tuning
from engine.bulk.tuning import knee, measured, tuned
from engine.bulk.wire import AUTO_BATCH
from tests.support.kv import small_engine


@pytest.mark.parametrize(
    ("pass_s", "expected"),
    [
        (lambda rows: 1.0, 128),  # rows cost nothing
        (lambda rows: float(rows), 128),  # nothing but the rows costs
        (lambda rows: rows * (1.0 + 0.01 * math.log2(rows)), 64),  # each doubling makes them a little slower
        (lambda rows: rows + rows**2 / 64, 8),
        (lambda rows: 16 + rows + rows**2 / 64, 32),
        (lambda rows: rows + 40.0 * (rows == 32), 128),  # one was disturbed
        (lambda rows: {64: 60.0, 128: 135.0}.get(rows, rows), 64),
    ],
)
def test_the_knee(pass_s: Callable[[int], float], expected: int) -> None:
    assert knee({rows: pass_s(rows) for rows in (8, 16, 32, 64, 128)}, 64) == expected


def test_what_could_not_be_measured() -> None:
    assert knee({8: 1.0, 16: 1.0, 32: None, 64: None}, 64) == 64
    assert knee({8: 1.0, 16: 3.0, 32: None, 64: None}, 64) == 8
    assert knee({8: 1.0, 16: 1.0, 32: None}, 4) == 16
    assert knee({8: None}, 64) == 64


def test_times_are_the_least_of_some_and_end_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(tuning.time, "monotonic", lambda: clock[0])
    asked = []

    def seconds_of(count: int) -> float | None:
        asked.append(count)
        clock[0] += 0.13
        return None if count == 3 else count + (9.0 if len(asked) == 7 else 0.0)

    assert measured((1, 2, 3), seconds_of) == {1: 1.0, 2: 2.0, 3: None}
    assert asked == [1, 2, 3, 1, 2, 3, 1]
    clock[0] = -1e3
    asked.clear()
    monkeypatch.setattr(tuning, "_MEASURE_S", 0.1)
    assert measured((1, 2), seconds_of) == {1: 1.0, 2: None}


def test_limits_of_a_small_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = small_engine(tmp_path, monkeypatch, num_blocks=1000)
    monkeypatch.setattr(tuning, "_MEASURE_S", 60.0)
    tuned_engine, limits = tuned(engine, AUTO_BATCH)
    # 41 contexts are the most that the cache holds
    assert limits.max_sequences in (1, 4, 8, 16, 32, 64)
    assert limits.max_batch_tokens >= 2 * limits.max_sequences
    assert limits.prompts_first
    cost = tuned_engine.loop.speculator.cost
    assert 0.0 < cost.estimate_s(1) < cost.estimate_s(32)
    assert tuned(engine, 3)[1].max_sequences == 3
    assert tuned(engine, 400)[1].max_batch_tokens == 800
    assert engine.cache.num_used == 0
    engine.loop.check_idle()
