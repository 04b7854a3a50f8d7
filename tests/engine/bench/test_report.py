"""Reports: percentiles, the JSON line at the end, files."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

from engine.bench.plot import _draw_step, write_plot
from engine.bench.report import (
    OFFLINE_COLUMNS,
    SERVING_COLUMNS,
    STEP_COLUMNS,
    STEP_SHARES,
    Bar,
    Column,
    ModelResult,
    Report,
    percentile,
    print_report,
    write_files,
)

_FACTS = {"num_parameters": 1234, "dtype": "float32", "device": "cpu"}
_ROWS = [
    {"cap": 1, "ttft_p50_ms": 20.04, "ttft_p95_ms": None, "in_time_share": 0.5, "output_tokens_per_s": 10.0},
    {"cap": 4, "ttft_p50_ms": 10.0, "ttft_p95_ms": None, "in_time_share": 1.0, "output_tokens_per_s": 20.0},
]
_PUBLISHED = [{"cap": 1, "ttft_p50_ms": 99.0, "ttft_p95_ms": 100.0, "output_tokens_per_s": 5.0}]


def _report(benchmark: str = "serving", **changes: object) -> Report:
    result = ModelResult(**{"model": "[x]", "facts": _FACTS, "rows": _ROWS, "published": _PUBLISHED, **changes})  # type: ignore[arg-type]
    machine = {"cpu": "a CPU", "num_threads": 2, "torch": "2"}
    return Report(benchmark, machine, {"seed": 7}, ["a note"], [result])


def _printed(report: Report, *tables: Sequence[Column], has_colour: bool = False) -> list[str]:
    system: Literal["standard"] | None = "standard" if has_colour else None
    console = Console(file=io.StringIO(), width=130, highlight=False, force_terminal=has_colour, color_system=system)
    print_report(report, tables or (SERVING_COLUMNS,), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_percentiles_lie_on_a_line_between_two_values() -> None:
    assert percentile([], 95) is None
    assert percentile([3.0], 95) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([float(i) for i in range(101)], 95) == 95.0


def test_the_last_line_is_the_whole_report_as_json() -> None:
    report = _report()
    data = json.loads(_printed(report)[-1])
    assert data["benchmark"] == "serving" and data["conditions"] == {"seed": 7} and data["notes"] == ["a note"]
    (result,) = data["results"]
    assert (result["rows"], result["published"], result["facts"]) == (_ROWS, _PUBLISHED, _FACTS)


def test_the_table_shows_what_is_known_in_its_unit() -> None:
    lines = _printed(_report())
    assert any("[x]: 1,234 parameters, float32 on cpu" in line for line in lines)
    header, ours, _, theirs = lines[lines.index(next(line for line in lines if "TTFT" in line)) :][:4]
    assert header.split() == ["cap", "TTFT", "p50", "ms", "in", "time", "%", "out", "tok/s"]
    assert ours.split() == ["midline", "1", "20.0", "50.0", "10.0"]
    assert theirs.split() == ["published", "1", "99.0", "5.0"]
    assert any("another machine" in line for line in lines)


def test_a_roofline_is_explained() -> None:
    roofline = {"product_tops": 0.85, "product_kind": "int8", "read_gb_per_s": 28.0}
    (line,) = [line for line in _printed(_report("offline", roofline=roofline)) if line.startswith("ceiling")]
    assert "0.85 TOP/s (int8 product)" in line and "28.0 GB/s" in line


def test_a_step_stands_beside_the_rates_and_what_is_asked() -> None:
    rows = [{"num_rows": 8, "median_ms": 20.04, "read_bytes": 494_000_000, "qkv_share": 0.126, "rest_share": -0.01}]
    rates = {"product_tops": 0.85, "product_kind": "int8", "read_gb_per_s": 25.0, "best_read_gb_per_s": 28.0}
    bars = [Bar.at_most("a ratio", 1.3, 1.25), Bar.at_least("[a share]", 0.8, 0.8)]
    report = _report("step", rows=rows, published=[], roofline=rates, bars=bars)
    lines = _printed(report, STEP_COLUMNS, STEP_SHARES)
    first = lines.index(next(line for line in lines if "rows" in line))
    header, times, share_header, shares, *asked, measured = lines[first:][:7]
    assert header.split() == ["rows", "ms", "MB"] and times.split() == ["8", "20.0", "494"]
    assert share_header.split() == ["rows", "qkv", "%", "rest", "%"] and shares.split() == ["8", "13", "-1"]
    assert asked == [
        "a ratio: 1.30, asked at most 1.25: missed",
        "[a share]: 0.80, asked at least 0.80: met",
    ]
    assert "25.0 GB/s (at best 28.0)" in measured and "0.85 TOP/s (int8 product)" in measured
    assert [bar["is_met"] for bar in json.loads(lines[-1])["results"][0]["bars"]] == [False, True]
    missed, met = (
        line for line in _printed(report, STEP_COLUMNS, STEP_SHARES, has_colour=True) if "asked" in line[:80]
    )
    assert missed.startswith("\x1b[31m") and met.startswith("\x1b[32m")


def test_every_column_is_a_field_of_its_row() -> None:
    from engine.bench.offline import OfflineRow
    from engine.bench.serving import ServingRow

    for columns, row in ((SERVING_COLUMNS, ServingRow), (OFFLINE_COLUMNS, OfflineRow)):
        assert {column.name for column in columns} <= set(row.__dataclass_fields__)


def test_files_hold_the_same_numbers(tmp_path: Path) -> None:
    report = _report()
    json_path, csv_path = write_files(report, tmp_path)
    assert json.loads(json_path.read_text()) == json.loads(report.as_json())
    rows = list(csv.DictReader(io.StringIO(csv_path.read_text())))
    assert [(row["source"], row["cap"], row["ttft_p50_ms"]) for row in rows] == [
        ("midline", "1", "20.04"),
        ("midline", "4", "10.0"),
        ("published", "1", "99.0"),
    ]


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="an optional extra")
    path = write_plot(_report(), tmp_path)
    assert path is not None and path.read_bytes().startswith(b"\x89PNG")


def test_the_plot_of_steps_has_a_line_and_two_limits(tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="an optional extra").Figure()
    rows = [
        {"num_rows": count, "median_ms": 20.0, "read_bytes": 250_000_000, "num_ops": count * 10**9} for count in (8, 1)
    ]
    report = _report("step", rows=rows, roofline={"read_gb_per_s": 25.0, "product_tops": 0.5})
    _draw_step(figure, report)
    ours, read, product = figure.axes[0].get_lines()
    assert [list(line.get_xdata()) for line in (ours, read, product)] == [[1, 8]] * 3
    assert list(ours.get_ydata()) == [20.0, 2.5]
    assert list(read.get_ydata()) == [10.0, 1.25]
    assert list(product.get_ydata()) == [2.0, 2.0]
    path = write_plot(report, tmp_path)
    assert path is not None and path.name == "step.png"


def test_without_matplotlib_there_is_no_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert write_plot(_report(), tmp_path) is None
    assert list(tmp_path.iterdir()) == []
