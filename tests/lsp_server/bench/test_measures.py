"""What is computed from keystrokes, by hand-made ones."""

from typing import Any

import pytest

from engine.bench.report import Bar
from engine.request import Lane
from lsp_server.bench.measures import ALL, TokenCounts, bars, first_suggestions, measure, run_rows
from lsp_server.bench.page import KeyKind
from lsp_server.bench.player import Keystroke, ServerRecords, plain
from lsp_server.bench.run import _totals


def _record(source: str = "model", prompt: int = 100, cached: int = 96, **changes: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "cached_tokens": cached, "drafted_tokens": 4, "accepted_tokens": 3}
    return {"source": source, "is_reanchored": False, **counts, **changes}


def _stroke(due_ms: float, latency_ms: float | None = None, next_ms: float | None = None, **changes: Any) -> Keystroke:
    fields: dict[str, Any] = {"session": 0, "kind": KeyKind.CHAR, "line": (0, 0), "is_same_line": True, **changes}
    answered_ms = None if latency_ms is None else due_ms + latency_ms
    return Keystroke(due_ms=due_ms, next_due_ms=next_ms, answered_ms=answered_ms, **fields)


STROKES = [
    _stroke(0, 100, 200, is_same_line=False, text="x", record=_record(cached=0, is_reanchored=True)),
    _stroke(200, 50, 400, text="right", is_right=True, record=_record(cached=98)),
    _stroke(400, 1, 600, text="ight", is_right=True, record=_record("typed", 0, 0)),
    _stroke(600, None, 650, record=_record("none", 0, 0)),
    _stroke(650, 120, 700, line=(0, 1), text="yes", is_right=True, record=_record("running", 100, 90)),
    _stroke(700, None, None, session=1, has_failed=True, record=_record("none", 0, 0)),
    _stroke(800, 40, None, session=1, kind=KeyKind.ACCEPT, text="", record=_record(prompt=200, cached=190)),
]


def test_shares_times_and_tokens() -> None:
    row = measure(STROKES)
    assert row["num_keystrokes"] == 7
    assert row["in_time_share"] == 4 / 7  # one came after the next key, one was cancelled, one failed
    assert row["latency_p50_ms"] == 50 and row["latency_p99_ms"] == pytest.approx(119.2)
    assert (row["num_suggested"], row["num_cancelled"], row["num_failed"]) == (4, 1, 1)
    assert (row["typed_share"], row["joined_share"]) == (1 / 7, 1 / 7)
    assert row["mean_prompt_tokens"] == pytest.approx(400 / 3)
    assert row["mean_computed_tokens"] == 6 and row["p95_computed_tokens"] == pytest.approx(9.6)
    assert (row["num_drafted_tokens"], row["num_accepted_tokens"]) == (12, 9)
    assert (row["num_reanchors"], row["num_lines"], row["num_accepts"]) == (1, 3, 1)
    assert row["first_right_share"] == 0.5  # of two lines with a suggestion; the third had none
    assert [stroke.text for stroke in first_suggestions(STROKES)] == ["x", "yes"]


def test_without_records_nothing_is_made_up() -> None:
    row = measure([_stroke(0, 10, 100), _stroke(100, None, 200)])
    unknown = {name for name, value in row.items() if value is None}
    assert {"typed_share", "joined_share", "mean_computed_tokens", "num_drafted_tokens", "num_reanchors"} <= unknown
    assert (row["in_time_share"], row["num_cancelled"], row["latency_p50_ms"]) == (0.5, 1, 10)


def test_rows_of_a_run_and_of_its_sessions() -> None:
    whole, first, second = run_rows("full", ["a.py", "b.py"], STROKES, [5, 7], TokenCounts(200, 10, 3))
    assert (whole["session"], first["session"], second["session"]) == (ALL, "1 a.py", "2 b.py")
    assert (whole["num_keystrokes"], first["num_keystrokes"], second["num_keystrokes"]) == (7, 5, 2)
    assert (whole["num_saved_chars"], first["num_saved_chars"], second["num_saved_chars"]) == (12, 5, 7)
    assert (whole["wasted_share"], whole["num_idle_rows"]) == (0.05, 3) and "wasted_share" not in first


def _whole(run: str, **changes: Any) -> dict[str, Any]:
    row = {"run": run, "session": ALL, "in_time_share": 0.8, "typed_share": 0.3, "wasted_share": 0.05}
    row |= {"latency_p50_ms": 100.0, "latency_p95_ms": 500.0, "mean_computed_tokens": 2.0, "p95_computed_tokens": 8.0}
    return row | changes


def test_bars_for_the_small_model() -> None:
    found = {
        bar.name: bar for bar in bars([_whole("full"), _whole("anchor off", mean_computed_tokens=50.0)], 494_000_000)
    }
    missed = {name for name, bar in found.items() if not bar.is_met}
    assert missed == {"served without the model", "key to suggestion, p95 ms"}
    assert len(found) == 8 and found["anchor off, times the tokens computed"].value == 25.0


def test_bars_for_other_models_and_for_what_is_unknown() -> None:
    (bar,) = bars([_whole("full")], 1_540_000_000)
    assert bar == Bar.at_most("key to suggestion, p50 ms", 100.0, 350.0)
    assert bars([_whole("full")], 3_000_000_000) == []
    assert len(bars([_whole("full", typed_share=None, latency_p95_ms=None)], 494_000_000)) == 5


def test_the_service_s_counts_are_read() -> None:
    totals = _totals(
        "# TYPE midline_computed_tokens counter\n"
        'midline_computed_tokens_total{lane="interactive"} 120.0\n'
        'midline_computed_tokens_created{lane="interactive"} 1.7e+09\n'
        'midline_computed_tokens_total{lane="bulk"} 7.0\n'
        'midline_wasted_tokens_total{lane="interactive"} 3.0\n'
    )
    assert totals == {
        ("computed", Lane.INTERACTIVE): 120,
        ("computed", Lane.BULK): 7,
        ("wasted", Lane.INTERACTIVE): 3,
        ("wasted", Lane.BULK): 0,
    }


@pytest.mark.parametrize("num_between", [1, 5, 8, 19])
@pytest.mark.parametrize("num_ahead", [0, 1])
def test_records_come_together_from_lists_that_overlap(num_between: int, num_ahead: int) -> None:
    """The server's list holds the last twenty, perhaps one more than has been answered so far."""
    records, strokes = ServerRecords(), [_stroke(float(i), 1) for i in range(60)]
    made: list[dict[str, Any]] = [
        {"source": "typed" if i % 3 else "model", "total_ms": i // 4, "outcome": "suggested"} for i in range(60)
    ]
    for i, stroke in enumerate(strokes, 1):
        records.add_answer(stroke)
        if i % num_between == 0 and i < 60:
            records.read(made[: i + num_ahead][-20:])
    records.read(made[-20:])
    assert records.lay_beside()
    assert [stroke.record for stroke in strokes] == made


def test_records_that_look_alike_are_told_apart_by_the_number_of_answers() -> None:
    records, strokes = ServerRecords(), [_stroke(float(i), 1) for i in range(60)]
    for i, stroke in enumerate(strokes, 1):
        records.add_answer(stroke)
        if i % 8 == 0 or i == 60:
            records.read([{"outcome": "suggested"}] * min(i, 20))
    assert records.lay_beside()


def test_cancelled_requests_do_not_count() -> None:
    """A third of all has been cancelled, some of them before they began."""
    records, strokes, made = ServerRecords(), [], []
    for i in range(60):
        if i % 3:
            made.append({"outcome": "suggested", "total_ms": i})
            strokes.append(_stroke(float(i), 1))
            records.add_answer(strokes[-1])
        elif i % 2:
            made.append({"outcome": "cancelled", "total_ms": 0})
        if i % 8 == 0:
            records.read(made[-20:])
    records.read(made[-20:])
    assert records.lay_beside()
    assert [stroke.record["total_ms"] for stroke in strokes] == [stroke.due_ms for stroke in strokes]


def test_records_that_do_not_match_are_not_used() -> None:
    records, strokes = ServerRecords(), [_stroke(0, 1), _stroke(1, 1)]
    for stroke in strokes:
        records.add_answer(stroke)
    records.read([{"outcome": "suggested"}])
    assert not records.lay_beside() and strokes[0].record == {}


def test_objects_without_a_type_become_dictionaries() -> None:
    from collections import namedtuple

    item = namedtuple("item", "a b")  # as pygls makes them
    assert plain(item(1, [item(2, None)])) == {"a": 1, "b": [{"a": 2, "b": None}]}
