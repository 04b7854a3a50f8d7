"""Results as a table, as JSON and as CSV. Light: imports no torch.

The JSON holds everything: the machine, the conditions, what was done differently from the published system, all rows.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.bench import published

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """How a value of a row is shown."""

    header: str
    name: str
    scale: float = 1.0
    num_decimals: int = 0


SERVING_COLUMNS = (
    Column("cap", "cap"),
    Column("TTFT p50 ms", "ttft_p50_ms", num_decimals=1),
    Column("TTFT p95 ms", "ttft_p95_ms", num_decimals=1),
    Column("ITL p95 ms", "itl_p95_ms", num_decimals=1),
    Column("in time %", "in_time_share", scale=100.0, num_decimals=1),
    Column("out tok/s", "output_tokens_per_s", num_decimals=1),
    Column("superseded", "num_superseded"),
    Column("cached %", "cached_share", scale=100.0),
)
OFFLINE_COLUMNS = (
    Column("cap", "cap"),
    Column("order", "order"),
    Column("wall s", "wall_s", num_decimals=2),
    Column("out tok/s", "output_tokens_per_s", num_decimals=1),
    Column("KV peak %", "kv_peak_share", scale=100.0, num_decimals=1),
    Column("recomputed", "recomputed_tokens"),
    Column("padding %", "padding_share", scale=100.0, num_decimals=1),
    Column("ceiling s", "ceiling_s", num_decimals=2),
    Column("× ceiling", "times_ceiling", num_decimals=2),
)
STEP_COLUMNS = (
    Column("rows", "num_rows"),
    Column("ms", "median_ms", num_decimals=1),
    Column("least ms", "least_ms", num_decimals=1),
    Column("MB", "read_bytes", scale=1e-6),
    Column("GB/s", "gb_per_s", num_decimals=1),
    Column("of read %", "read_share", scale=100.0),
    Column("GOP/s", "gop_per_s"),
)
STEP_SHARES = (
    Column("rows", "num_rows"),
    Column("qkv %", "qkv_share", scale=100.0),
    Column("output %", "output_share", scale=100.0),
    Column("gate_up %", "gate_up_share", scale=100.0),
    Column("down %", "down_share", scale=100.0),
    Column("head %", "head_share", scale=100.0),
    Column("attention %", "attention_share", scale=100.0),
    Column("rest %", "rest_share", scale=100.0),
)
_RATES = {
    "offline": "ceiling: all tokens at {product_tops:.2f} TOP/s ({product_kind} product), no decode step faster than "
    "its weights are read as int8 at {read_gb_per_s:.1f} GB/s; measured here",
    "step": "this machine reads {read_gb_per_s:.1f} GB/s (at best {best_read_gb_per_s:.1f}) and computes "
    "{product_tops:.2f} TOP/s ({product_kind} product); measured here",
}


@dataclass(frozen=True)
class Bar:
    """A ratio that was measured, and what is asked of it."""

    name: str
    value: float
    limit: float
    is_least: bool
    """Whether the limit is the least that is asked, or the most."""
    is_met: bool

    @classmethod
    def at_least(cls, name: str, value: float, limit: float) -> "Bar":
        """The value must not be below."""
        return cls(name, value, limit, is_least=True, is_met=value >= limit)

    @classmethod
    def at_most(cls, name: str, value: float, limit: float) -> "Bar":
        """The value must not be above."""
        return cls(name, value, limit, is_least=False, is_met=value <= limit)


@dataclass(frozen=True)
class ModelResult:
    """One model's rows. ``published`` are the figures to print beside them, if any."""

    model: str
    facts: dict[str, Any]
    rows: list[dict[str, Any]]
    published: list[dict[str, Any]] = field(default_factory=list)
    roofline: dict[str, Any] | None = None
    bars: list[Bar] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """A benchmark's results and how they came about."""

    benchmark: str
    machine: dict[str, Any]
    conditions: dict[str, Any]
    notes: list[str]
    results: list[ModelResult]

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), allow_nan=False)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Between two values a straight line; None without any."""
    return float(np.percentile(values, percent)) if values else None


def print_report(report: Report, tables: Sequence[Sequence[Column]], console: Console) -> None:
    """Each model's tables, by their columns, and notes; as the last line the JSON object.

    A row is in the tables whose first column it has.
    """
    machine = report.machine
    console.print(
        f"[bold]{report.benchmark}[/] on {escape(str(machine['cpu']))}, {machine['num_threads']} threads, "
        f"torch {machine['torch']}",
        soft_wrap=True,
    )
    for result in report.results:
        console.print()
        console.print(escape(_title(result)), style="italic", soft_wrap=True)
        for columns in tables:
            console.print(_table(result, columns))
        for bar in result.bars:
            console.print(escape(_bar_line(bar)), style="green" if bar.is_met else "red", soft_wrap=True)
        for line in _remarks(result, report.benchmark):
            console.print(escape(line), style="dim", soft_wrap=True)
    console.print("\nWhat is measured, and how:")
    for note in report.notes:
        console.print(f"- {escape(note)}", soft_wrap=True)
    console.file.write(report.as_json() + "\n")


def _title(result: ModelResult) -> str:
    facts = result.facts
    return f"{result.model}: {facts['num_parameters']:,} parameters, {facts['dtype']} on {facts['device']}"


def _table(result: ModelResult, columns: Sequence[Column]) -> Table:
    rows = [row for row in result.rows if columns[0].name in row]
    used = [column for column in columns if any(row.get(column.name) is not None for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    if result.published:
        table.add_column("")
    for column in used:
        table.add_column(column.header, justify="right", no_wrap=True)
    for row in rows:
        source = ["midline"] if result.published else []
        table.add_row(*source, *(_cell(row.get(column.name), column) for column in used))
    for row in result.published:
        table.add_row("published", *(_cell(row.get(column.name), column) for column in used), style="dim")
    return table


def _bar_line(bar: Bar) -> str:
    asked = f"{'at least' if bar.is_least else 'at most'} {bar.limit:.2f}"
    return f"{bar.name}: {bar.value:.2f}, asked {asked}: {'met' if bar.is_met else 'missed'}"


def _cell(value: Any, column: Column) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value * column.scale:.{column.num_decimals}f}"


def _remarks(result: ModelResult, benchmark: str) -> list[str]:
    remarks = list(result.remarks)
    if result.published:
        remarks.append(
            f"published: {published.CONDITIONS}; another machine, so compare how the rows of each change with the cap"
        )
    if result.roofline:
        remarks.append(_RATES[benchmark].format(**result.roofline))
    return remarks


def write_files(report: Report, folder: Path) -> list[Path]:
    """JSON and CSV, named after the benchmark; returns their paths."""
    json_path, csv_path = folder / f"{report.benchmark}.json", folder / f"{report.benchmark}.csv"
    json_path.write_text(json.dumps(asdict(report), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    rows = [
        {"model": result.model, "source": source, **row}
        for result in report.results
        for source, rows in (("midline", result.rows), ("published", result.published))
        for row in rows
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with csv_path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return [json_path, csv_path]
