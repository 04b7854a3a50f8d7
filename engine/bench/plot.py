"""Results as a picture, where matplotlib is installed. Light: imports no torch."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from engine.bench.report import Report

_TIMES = {
    "serving": ("time to first token, ms", (("ttft_p50_ms", "p50"), ("ttft_p95_ms", "p95"))),
    "offline": ("wall time, s", (("wall_s", ""),)),
}
_RUNS: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "keystrokes": (
        ("key to suggestion, ms:\np50 and p95", "run", ("latency_p95_ms", "latency_p50_ms")),
        (
            "prompt tokens computed on the same line: mean and p95",
            "run",
            ("p95_computed_tokens", "mean_computed_tokens"),
        ),
    ),
    "bulk": (
        ("holes a minute", "run", ("holes_per_min",)),
        (
            "answer tokens a second:\ndecoding, all in all",
            "run",
            ("decode_tokens_per_s", "generated_tokens_per_s"),
        ),
        ("key to suggestion, ms:\np50 and p95", "typing", ("latency_p95_ms", "latency_p50_ms")),
    ),
}
"""Of each panel the title, what names a bar, and its values, the larger first."""
_MARKERS = ("o", "s")
_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")


def write_plot(report: Report, folder: Path) -> Path | None:
    """The report's times as PNG; None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    if report.benchmark == "step":
        _draw_step(figure, report)
    elif report.benchmark in _RUNS:
        _draw_runs(figure, report)
    else:
        _draw_caps(figure, report)
    path = folder / f"{report.benchmark}.png"
    figure.savefig(path, dpi=120)
    return path


def _draw_caps(figure: Any, report: Report) -> None:
    """Times and tokens per second over the cap."""
    times, speed = figure.subplots(1, 2)
    label, time_names = _TIMES[report.benchmark]
    for axes, title in ((times, label), (speed, "output tokens per second")):
        _set_up(axes, title, "requests at once, at most")
    for name, rows, style in _lines(report):
        for (value, what), marker in zip(time_names, _MARKERS, strict=False):
            _draw(times, rows, value, f"{name} {what}".strip(), style + marker)
        _draw(speed, rows, "output_tokens_per_s", name, style + _MARKERS[0])
    times.legend(fontsize="small")


def _draw_step(figure: Any, report: Report) -> None:
    """Time per row over the rows, above what reading and multiplying take at least."""
    axes = figure.subplots()
    _set_up(axes, "time of a pass per row, ms", "rows")
    for result, colour in zip(report.results, cycle(_COLOURS), strict=False):
        rates = result.roofline
        assert rates is not None
        rows = sorted(result.rows, key=lambda row: int(row["num_rows"]))
        counts = [row["num_rows"] for row in rows]
        lines = (
            (f"{result.model}, {result.facts['dtype']}", "o-", [row["median_ms"] for row in rows]),
            ("  bytes at the read bandwidth", "--", [row["read_bytes"] / rates["read_gb_per_s"] / 1e6 for row in rows]),
            ("  operations at the product rate", ":", [row["num_ops"] / rates["product_tops"] / 1e9 for row in rows]),
        )
        for label, style, times_ms in lines:
            per_row = [ms / count for ms, count in zip(times_ms, counts, strict=True)]
            axes.plot(counts, per_row, style, color=colour, label=label)
    axes.yaxis.set_minor_formatter("")  # over so many powers of ten they would overlap
    axes.legend(fontsize="small")


def _draw_runs(figure: Any, report: Report) -> None:
    """Bars for each run, full and without something, or with more and more at once."""
    panels = _RUNS[report.benchmark]
    for axes, (title, label, values) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        rows = [row for result in report.results for row in result.rows if row.get("session", "all") == "all"]
        rows = [row for row in rows if label in row]
        for value, colour in zip(values, _COLOURS, strict=False):
            lengths = [row[value] or 0.0 for row in rows]
            axes.barh([row[label] for row in rows], lengths, color=colour, alpha=0.7, label=value)
        axes.set_title(title)
        axes.invert_yaxis()
        axes.grid(alpha=0.3, axis="x")


def _set_up(axes: Any, title: str, x_label: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(alpha=0.3, which="both")


def _lines(report: Report) -> list[tuple[str, list[dict[str, Any]], str]]:
    """Name, rows and line style: ours are solid, published ones dashed."""
    lines = []
    for result in report.results:
        for order in dict.fromkeys(row.get("order", "") for row in result.rows):
            rows = [row for row in result.rows if row.get("order", "") == order]
            lines.append((f"midline, {result.model} {order}".strip(), rows, "-"))
        if result.published:
            lines.append(("published system", result.published, "--"))
    return lines


def _draw(axes: Any, rows: Sequence[dict[str, Any]], value: str, label: str, style: str) -> None:
    points = sorted((row["cap"], row[value]) for row in rows if row[value] is not None)
    axes.plot([cap for cap, _ in points], [number for _, number in points], style, label=label)
