"""What is made of the numbers of runs, and what is asked of them."""

from pathlib import Path
from typing import Any

import pytest

from engine.bench.report import Bar
from engine.bulk.wire import Progress, Ready, Summary
from lsp_server.bench.bulk_beside import Beside
from lsp_server.bench.bulk_measures import bars, bulk_row, typing_row, with_ratios
from lsp_server.bench.bulk_run import variants
from lsp_server.bench.bulk_workspace import make_workspace
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.run import RunResult
from tests.lsp_server.bench.test_bulk_workspace import _cart

_RUN = {
    "holes_per_min": 50.0,
    "decode_tokens_per_s": 60.0,
    "roofline_share": 0.3,
    "operations_per_s": 1e12,
    "num_computed_tokens": 1040,
    "num_distinct_tokens": 1000,
    "num_preemptions": 0,
    "padding_share": 0.01,
    "peak_memory_bytes": 900,
}


def _rows(**of_auto: Any) -> list[dict[str, Any]]:
    auto = {"run": "auto", **_RUN, "holes_per_min": 95.0, "decode_tokens_per_s": 400.0, "roofline_share": 0.7}
    others = [{"run": "cap 1", **_RUN}, {"run": "cap 16", **_RUN, "holes_per_min": 100.0}]
    rows = with_ratios([{"run": "one by one", **_RUN}, *others, {**auto, **of_auto}, {"run": "auto, unsorted", **_RUN}])
    return [*rows, {"typing": "alone", "latency_p95_ms": 100.0}, {"typing": "beside bulk", "latency_p95_ms": 150.0}]


def _missed(rows: list[dict[str, Any]], allowed_bytes: int = 1000) -> list[str]:
    return [bar.name for bar in bars(rows, allowed_bytes) if not bar.is_met]


def test_all_is_met() -> None:
    found = bars(_rows(), 1000)
    assert _missed(_rows()) == []
    assert Bar.at_least("auto, times the holes a minute of one by one", 1.9, 1.8) in found
    assert Bar.at_least("auto, of the best fixed cap", 0.95, 0.9) in found
    assert Bar.at_most("typing beside bulk, times the p95 of typing alone", 1.5, 2.0) in found
    assert len(found) == 9


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"holes_per_min": 89.0}, ["auto, times the holes a minute of one by one", "auto, of the best fixed cap"]),
        ({"decode_tokens_per_s": 359.0}, ["auto, times the decode tokens a second of one by one"]),
        ({"roofline_share": 0.59}, ["auto, end to end, of the roofline"]),
        ({"num_computed_tokens": 1051}, ["computed of distinct prompt tokens"]),
        ({"num_preemptions": 1}, ["preemptions in all runs"]),
        ({"padding_share": 0.06}, ["padding, sorted"]),
        ({"peak_memory_bytes": 1001}, ["peak memory, of what is allowed"]),
    ],
)
def test_each_can_be_missed(changed: dict[str, Any], missed: list[str]) -> None:
    assert _missed(_rows(**changed)) == missed


def test_what_was_not_measured_is_not_asked() -> None:
    rows = _rows(roofline_share=None, decode_tokens_per_s=None)
    rows = [row for row in rows if row.get("run", "").startswith(("one", "auto"))]
    assert [bar.name.split(",")[0] for bar in bars(rows, 1000)] == [
        "auto",
        "computed of distinct prompt tokens",
        "preemptions in all runs",
        "padding",
        "peak memory",
    ]


def test_the_roofline_is_one_for_all_runs() -> None:
    """The rate that most runs measure counts, not what one finds in a moment when others are busy, or not."""
    rows = [row for row in _rows(roofline_share=0.14, operations_per_s=5e12) if "run" in row]
    assert [row["roofline_share"] for row in rows] == pytest.approx([0.3, 0.3, 0.3, 0.7, 0.3])


def test_a_run_in_numbers(tmp_path: Path) -> None:
    tasks = make_workspace(tmp_path, [_cart()], 100, seed=1)
    fills = [Fill(task.hole, FillState.FILLED, task.cut.truth) for task in tasks]
    fills[0] = Fill(tasks[0].hole, FillState.FAILED, reason="no", num_attempts=2)
    fills[1] = Fill(tasks[1].hole, FillState.FILLED, "x", num_attempts=2)
    progress = Progress(10.0, 9, 0, 0, 300, 700, 100, 0.02, 0.0, peak_memory_bytes=5)
    summary = Summary(progress, 0.5, 3, 2.0, 80, 4e9, 1e9)
    result = RunResult(tuple(fills), 15.0, Ready("tiny", "int8", "qwen", 512, 1, 4, 1.5), summary)
    row = bulk_row("auto", result, tasks, num_distinct_tokens=290)
    num = len(tasks)
    assert (row["run"], row["num_holes"], row["max_running"]) == ("auto", num, 3)
    assert (row["holes_per_min"], row["tokens_per_s"]) == (num * 6, 40.0)
    assert (row["generated_tokens_per_s"], row["decode_tokens_per_s"]) == (10.0, 40.0)
    assert row["roofline_share"] == pytest.approx(0.4)
    assert (row["filled_share"], row["exact_share"]) == ((num - 1) / num, (num - 2) / num)
    assert row["parse_share"] == (num - 1) / num
    assert (row["num_second_attempts"], row["num_prompt_tokens"]) == (2, 1000)
    assert (row["num_computed_tokens"], row["num_distinct_tokens"]) == (300, 290)


def test_typing_with_and_without_bulk() -> None:
    alone = typing_row("alone", {"latency_p95_ms": 9.0}, None)
    assert alone == {"typing": "alone", "latency_p95_ms": 9.0}
    beside = typing_row("beside bulk", {}, Beside(seconds=30.0, num_tokens=900, num_answers=10))
    assert (beside["bulk_tokens_per_s"], beside["bulk_answers_per_min"]) == (30.0, 20.0)


def test_the_runs() -> None:
    found = variants((1, 16))
    assert [variant.name for variant in found] == ["one by one", "cap 1", "cap 16", "auto", "auto, unsorted"]
    assert [variant.max_batch for variant in found] == [1, 1, 16, 0, 0]
    assert [variant.is_sorted for variant in found] == [True] * 4 + [False]
