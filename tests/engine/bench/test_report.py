"""Reports: percentiles, the JSON line at the end, files."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from engine.bench.plot import write_plot
from engine.bench.report import (
    OFFLINE_COLUMNS,
    SERVING_COLUMNS,
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


def _report(**changes: object) -> Report:
    result = ModelResult(**{"model": "[x]", "facts": _FACTS, "rows": _ROWS, "published": _PUBLISHED, **changes})  # type: ignore[arg-type]
    machine = {"cpu": "a CPU", "num_threads": 2, "torch": "2"}
    return Report("serving", machine, {"seed": 7}, ["a note"], [result])


def _printed(report: Report) -> list[str]:
    console = Console(file=io.StringIO(), width=130)
    print_report(report, SERVING_COLUMNS, console)
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
    (line,) = [line for line in _printed(_report(roofline=roofline)) if line.startswith("ceiling")]
    assert "0.85 TOP/s (int8 product)" in line and "28.0 GB/s" in line


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


def test_without_matplotlib_there_is_no_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert write_plot(_report(), tmp_path) is None
    assert list(tmp_path.iterdir()) == []
