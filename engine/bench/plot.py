"""Results as a picture, where matplotlib is installed. Light: imports no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.bench.report import Report

_TIMES = {
    "serving": ("time to first token, ms", (("ttft_p50_ms", "p50"), ("ttft_p95_ms", "p95"))),
    "offline": ("wall time, s", (("wall_s", ""),)),
}
_MARKERS = ("o", "s")


def write_plot(report: Report, folder: Path) -> Path | None:
    """Times and tokens per second over the cap, as PNG; None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    times, speed = figure.subplots(1, 2)
    label, time_names = _TIMES[report.benchmark]
    for axes, title in ((times, label), (speed, "output tokens per second")):
        _set_up(axes, title)
    for name, rows, style in _lines(report):
        for (value, what), marker in zip(time_names, _MARKERS, strict=False):
            _draw(times, rows, value, f"{name} {what}".strip(), style + marker)
        _draw(speed, rows, "output_tokens_per_s", name, style + _MARKERS[0])
    times.legend(fontsize="small")
    path = folder / f"{report.benchmark}.png"
    figure.savefig(path, dpi=120)
    return path


def _set_up(axes: Any, title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("requests at once, at most")
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
