"""What is shown of a run: live, in plain lines, as JSON, and the numbers at the end."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from engine.bulk.wire import Progress, Ready, Summary
from lsp_server.bulk.events import Checking, Computing, Done, Event, Loaded, Loading, Planned, Settled
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.progress import Rates, shown
from lsp_server.bulk.report import engine_report, lines_of, report_of
from tests.support.bulk_holes import marker_holes, source_with

_PROGRESS = Progress(2.0, 1, 3, 4, 400, 100, 30, 0.05, 0.5, 0, 1_500_000_000)
_SUMMARY = Summary(_PROGRESS, 0.75, 3, 1.0, 20, 6e9, 4e9)


def _fills(tmp_path: Path) -> list[Fill]:
    source = source_with(tmp_path, "a:100:.py", "x = <FILL>\ny = <FILL>\nz = <FILL>\n")
    good = [Fill(hole, FillState.FILLED, "secret_code", key="k") for hole in marker_holes(source)]
    return [good[0], replace(good[1], state=FillState.FAILED, reason="[red] is no colour", num_attempts=2), good[2]]


def _events(tmp_path: Path) -> list[Event]:
    fills = _fills(tmp_path)
    report = report_of(fills, 3.0, engine_report("tiny", "int8", 1.5, _SUMMARY))
    return [
        Planned(3, 1),
        Loading("tiny"),
        Loaded(Ready("tiny", "int8", "qwen", 2048, 10, 8, 1.5)),
        Computing(_PROGRESS),
        *(Settled(fill, number, min(number - 1, 1)) for number, fill in enumerate(fills, 1)),
        Checking(1, 0),
        Checking(2, 2),
        Done(report),
    ]


def _shown(kind: str, tmp_path: Path, *, is_terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=100, highlight=False, emoji=False)
    with shown(kind, console) as on_event:
        for event in _events(tmp_path):
            on_event(event)
    return out.getvalue()


def test_plain_lines(tmp_path: Path) -> None:
    lines = _shown("auto", tmp_path).splitlines()
    assert lines[:3] == ["3 holes in 1 file", "loading tiny", "loaded in 1.5 s, 8 holes at once"]
    assert lines[3].startswith("33% (1 of 3) after 0 s; batch 3, 4 waiting, 15 tok/s written, 200 read, cache 50%")
    assert lines[4] == "✗ a:100:.py:2:5 [red] is no colour"
    assert lines[-5:-3] == ["check without fills", "check 2, with 2 fills"]
    assert lines[-3] == "! 2 of 3 holes filled in 3.0 s, 1 failed, 2 shared an answer, 1 needed a second attempt"
    assert lines[-2].strip() == (
        "tiny, int8, loaded in 1.5 s: 30 tokens written, 15/s (20/s decoding);"
        " 400 read, 20% of the prompts were there already"
    )
    assert lines[-1].strip() == (
        "batch up to 3, padding 5.0%, preemptions 0, cache 75% full at most, memory 1.50 GB,"
        " 75% of what this machine can do"
    )


@pytest.mark.parametrize("kind", ["auto", "rich"])
def test_a_terminal_shows_a_bar_and_what_the_engine_does(tmp_path: Path, kind: str) -> None:
    text = _shown(kind, tmp_path, is_terminal=kind == "auto")
    assert "3/3" in text or kind == "rich"
    assert "a:100:.py:2:5 [red] is no colour" in text
    assert "2 of 3 holes filled" in text


def test_none_is_silent(tmp_path: Path) -> None:
    assert _shown("none", tmp_path) == ""


def test_json_lines_hold_everything_but_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _shown("json", tmp_path) == ""
    out, err = capsys.readouterr()
    assert out == ""
    assert "secret_code" not in err
    events = [json.loads(line) for line in err.splitlines()]
    assert [event["event"] for event in events] == [type(event).__name__.lower() for event in _events(tmp_path)]
    assert events[2]["max_batch"] == 8
    assert events[3]["num_generated_tokens"] == 30
    assert events[5] == {
        "event": "settled",
        "file": "a:100:.py",
        "line": 2,
        "column": 5,
        "kind": "markers",
        "name": "",
        "state": "failed",
        "reason": "[red] is no colour",
        "num_settled": 2,
        "num_failed": 1,
    }
    assert events[-1]["report"]["engine"]["roofline_share"] == 0.75


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = Rates()
    for second in range(31):
        num_tokens = 10 * second if second <= 15 else 150 + 40 * (second - 15)
        rates.add(replace(_PROGRESS, seconds=float(second), num_generated_tokens=num_tokens, num_computed_tokens=0))
    read, written = rates.per_s()
    assert read == 0
    assert written == pytest.approx(40)


def test_a_run_of_the_journal_has_no_engine(tmp_path: Path) -> None:
    fills = [replace(fill, is_from_journal=True) for fill in _fills(tmp_path)]
    report = report_of(fills, 0.1, None)
    assert (report.num_from_journal, report.num_shared, report.engine) == (3, 0, None)
    assert list(lines_of(report)) == [
        "2 of 3 holes filled in 0.1 s, 1 failed, 3 from the journal, 1 needed a second attempt"
    ]
    assert report_of([], 0.0, None).verified_share == 1.0


def test_fills_taken_back_were_verified(tmp_path: Path) -> None:
    good, failed, other = _fills(tmp_path)
    report = report_of([good, failed, replace(other, state=FillState.REVERTED)], 1.0, None)
    assert (report.num_filled, report.num_reverted, report.num_failed) == (1, 1, 1)
    assert report.verified_share == pytest.approx(2 / 3)


def test_what_was_not_measured_is_not_shown() -> None:
    quiet = replace(_SUMMARY, operations_per_s=None, decode_seconds=0.0, decode_tokens=0)
    engine = engine_report("tiny", "int8", 1.5, quiet)
    assert (engine.roofline_share, engine.decode_tokens_per_s) == (None, None)
