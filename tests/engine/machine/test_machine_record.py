import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import filelock
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.machine.predict import ROWS
from engine.machine.record import (
    Machine,
    lock_machine,
    machine_key,
    parse_machine,
    read_machine,
    record_suggestion,
    timing_name,
)
from tests.support.machine import FAST, break_machine, keep_machine

KEY = machine_key(EngineConfig())
GOOD: dict[str, Any] = json.loads(json.dumps(asdict(Machine(FAST, free_bytes=5, measured_at_s=1.0))))


def test_what_was_measured_is_read_again() -> None:
    assert read_machine(KEY) is None
    machine = keep_machine(FAST)
    assert read_machine(KEY) == machine


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "another"},
        {"torch": "1.0"},
        {"midline": "0.0.1"},
        {"num_threads": 63},
        {"settings": ("cuda", "auto", "auto")},
        {"schema": 0},
    ],
)
def test_anything_else_is_measured_anew(change: dict[str, Any]) -> None:
    keep_machine(FAST)
    other = replace(KEY, **change)
    assert other.path != KEY.path
    assert read_machine(other) is None
    other.path.write_bytes(KEY.path.read_bytes())  # a file under a wrong name is not taken for its own
    assert read_machine(other) is None


def test_settings_are_part_of_the_key() -> None:
    assert machine_key(EngineConfig(num_threads=7)) != KEY
    for setting in ({"device": "cpu"}, {"dtype": "float32"}, {"kernels": "torch"}):
        assert machine_key(EngineConfig(**setting)) != KEY  # type: ignore[arg-type]
    assert machine_key(EngineConfig(precision="exact", niceness=3)) == KEY


def _with(path: str, value: object) -> dict[str, Any]:
    """The good content with one thing changed."""
    content: dict[str, Any] = json.loads(json.dumps(GOOD))
    *way, last = path.split(".")
    inner = content
    for name in way:
        inner = inner[name]
    inner[last] = value
    return content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\x00",
        b"[]",
        b"null",
        b'{"key": 1}',
        b"[" * 100_000,
        [],
        None,
        {},
        {"rates": None, "unknown": 1},
        _with("rates", {}),
        _with("rates.read_bytes_per_s", 0),
        _with("rates.read_bytes_per_s", float("nan")),
        _with("rates.read_bytes_per_s", float("inf")),
        _with("rates.read_bytes_per_s", "fast"),
        _with("rates.kernels", {}),
        _with("rates.kernels", 3),
        _with("rates.automatic", "int3"),
        _with("rates.kernels.int8.layer_s", -1.0),
        _with("rates.kernels.int8.weights_per_s", [1.0]),
        _with("rates.kernels.int8.weights_per_s", [1.0, 2.0, 0.0]),
        _with("free_bytes", -5),
        _with("suggestion_ms", {"a int8": -1.0}),
    ],
)
def test_a_broken_file_counts_as_none(content: object) -> None:
    break_machine(content)
    if content != {}:
        assert read_machine(KEY) is None
    record_suggestion(KEY, "m", "int8", 5.0)  # and is replaced
    known = read_machine(KEY)
    assert known is not None and known.suggestion_ms == {"m int8": 5.0}


@given(st.binary(max_size=200) | st.integers(0, 400))
@settings(derandomize=True, max_examples=100)
def test_no_damage_breaks_reading(damage: bytes | int) -> None:
    keep_machine(FAST)
    whole = KEY.path.read_bytes()
    KEY.path.write_bytes(damage if isinstance(damage, bytes) else whole[:damage])
    known = read_machine(KEY)
    assert known is None or len(known.rates.kernels["int8"].weights_per_s) == len(ROWS)  # type: ignore[union-attr]


def test_nonsense_of_the_measuring_process_is_an_error() -> None:
    assert parse_machine(GOOD).rates == parse_machine(asdict(Machine(FAST))).rates
    for content in (None, 3, [], {"rates": 1}, _with("rates.automatic", "")):
        with pytest.raises(ValueError):
            parse_machine(content)


def test_measured_times_are_kept_beside_the_rates() -> None:
    keep_machine(FAST)
    record_suggestion(KEY, "a", "int8", 250.04)
    record_suggestion(KEY, "a", "exact", 400.0)
    record_suggestion(KEY, "a", "int8", 260.0)
    known = read_machine(KEY)
    assert known is not None and known.rates is not None
    assert known.suggestion_ms == {timing_name("a", "int8"): 260.0, timing_name("a", "exact"): 400.0}


_RECORD = """
import sys
from engine.config import EngineConfig
from engine.machine.record import machine_key, record_suggestion
for number in range(10):
    record_suggestion(machine_key(EngineConfig()), f"{sys.argv[1]}-{number}", "int8", 1.0)
"""


def test_writers_at_the_same_time_lose_nothing() -> None:
    keep_machine(FAST)
    commands = [[sys.executable, "-c", _RECORD, name] for name in "abc"]
    writers = [subprocess.Popen(command, cwd=Path(__file__).parents[3]) for command in commands]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    known = read_machine(KEY)
    assert known is not None and known.rates is not None and len(known.suggestion_ms) == 30


def test_whoever_writes_waits_for_the_lock() -> None:
    with lock_machine(KEY, 1.0), pytest.raises(OSError) as caught, lock_machine(KEY, 0.05):
        pass
    assert isinstance(caught.value, filelock.Timeout)


@pytest.mark.parametrize(
    ("busy", "age_s", "is_lasting"), [(0.2, 1e7, True), (1.5, 60, True), (1.5, 7200, False), (1.5, -60, False)]
)
def test_what_was_disturbed_is_not_kept_for_long(busy: float, age_s: float, is_lasting: bool) -> None:
    now_s = time.time()
    assert Machine(FAST, num_busy_cores=busy, measured_at_s=now_s - age_s).is_lasting(now_s) is is_lasting
