"""From keystrokes to numbers: one row for a run, or for a session of it. Pure.

A share is of all keystrokes unless it says otherwise; what cannot be known is None.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.bench.report import Bar, Column, percentile
from lsp_server.bench.page import KeyKind
from lsp_server.bench.player import Keystroke

FULL = "full"
"""The run in which nothing is switched off."""
ALL = "all"
"""The row over all sessions of a run."""

SPEED_COLUMNS = (
    Column("run", "run"),
    Column("session", "session"),
    Column("keys", "num_keystrokes"),
    Column("in time %", "in_time_share", scale=100.0),
    Column("p50 ms", "latency_p50_ms"),
    Column("p95 ms", "latency_p95_ms"),
    Column("p99 ms", "latency_p99_ms"),
    Column("cancelled", "num_cancelled"),
    Column("no model %", "typed_share", scale=100.0),
    Column("joined %", "joined_share", scale=100.0),
    Column("first right %", "first_right_share", scale=100.0),
    Column("saved", "num_saved_chars"),
)
TOKEN_COLUMNS = (
    Column("run", "run"),
    Column("session", "session"),
    Column("prompt", "mean_prompt_tokens"),
    Column("computed", "mean_computed_tokens", num_decimals=1),
    Column("p95", "p95_computed_tokens", num_decimals=1),
    Column("drafted", "num_drafted_tokens"),
    Column("accepted", "num_accepted_tokens"),
    Column("re-anchors", "num_reanchors"),
    Column("all rows", "num_rows"),
    Column("wasted", "num_wasted_rows"),
    Column("wasted %", "wasted_share", scale=100.0, num_decimals=1),
    Column("idle rows", "num_idle_rows"),
)

_MAX_SMALL_PARAMETERS = 1_000_000_000
_MAX_LARGE_PARAMETERS = 2_000_000_000


@dataclass(frozen=True)
class TokenCounts:
    """The service's own counts of a run: rows of forward passes, of all requests together."""

    computed: float
    wasted: float
    """Of the computed ones: for requests that were cancelled, or superseded by one that begins otherwise."""
    idle: float
    """Computed while nobody waited; not among the others."""


def run_rows(
    run: str, names: Sequence[str], keystrokes: Sequence[Keystroke], saved: Sequence[int], counts: TokenCounts | None
) -> list[dict[str, Any]]:
    """The row of a whole run, then one for each name of a session. ``saved`` are the characters of each session."""
    whole = {"run": run, "session": ALL, **measure(keystrokes), "num_saved_chars": sum(saved), **_counted(counts)}
    rows = [whole]
    for number, name in enumerate(names):
        own = measure([stroke for stroke in keystrokes if stroke.session == number])
        rows.append({"run": run, "session": f"{number + 1} {name}", **own, "num_saved_chars": saved[number]})
    return rows


def measure(keystrokes: Sequence[Keystroke]) -> dict[str, Any]:
    """What can be said of some keystrokes; at least one."""
    num, answered = len(keystrokes), [stroke for stroke in keystrokes if stroke.latency_ms is not None]
    latencies = [stroke.latency_ms for stroke in answered if stroke.latency_ms is not None]
    served = [stroke.record for stroke in keystrokes if stroke.record.get("source") == "model"]
    computed = [
        float(_computed(stroke.record))
        for stroke in keystrokes
        if stroke.is_same_line and stroke.record.get("source") == "model"
    ]
    firsts = first_suggestions(keystrokes)
    is_known = any(stroke.record for stroke in keystrokes)
    return {
        "num_keystrokes": num,
        "in_time_share": sum(stroke.is_in_time for stroke in keystrokes) / num,
        "latency_p50_ms": percentile(latencies, 50),
        "latency_p95_ms": percentile(latencies, 95),
        "latency_p99_ms": percentile(latencies, 99),
        "num_suggested": sum(bool(stroke.text) for stroke in answered),
        "num_accepts": sum(stroke.kind is KeyKind.ACCEPT for stroke in keystrokes),
        "num_cancelled": num - len(answered) - sum(stroke.has_failed for stroke in keystrokes),
        "num_failed": sum(stroke.has_failed for stroke in keystrokes),
        "typed_share": _share(keystrokes, "typed") if is_known else None,
        "joined_share": _share(keystrokes, "running") if is_known else None,
        "mean_prompt_tokens": _mean([record["prompt_tokens"] for record in served]),
        "mean_computed_tokens": _mean(computed),
        "p95_computed_tokens": percentile(computed, 95),
        "num_drafted_tokens": sum(record["drafted_tokens"] for record in served) if is_known else None,
        "num_accepted_tokens": sum(record["accepted_tokens"] for record in served) if is_known else None,
        "num_reanchors": sum(bool(stroke.record.get("is_reanchored")) for stroke in keystrokes) if is_known else None,
        "num_lines": len({(stroke.session, stroke.line) for stroke in keystrokes}),
        "first_right_share": sum(stroke.is_right for stroke in firsts) / len(firsts) if firsts else None,
    }


def first_suggestions(keystrokes: Iterable[Keystroke]) -> list[Keystroke]:
    """Of each line on which something was suggested, the first keystroke with a suggestion."""
    firsts: dict[tuple[int, tuple[int, int]], Keystroke] = {}
    for stroke in keystrokes:
        if stroke.text:
            firsts.setdefault((stroke.session, stroke.line), stroke)
    return list(firsts.values())


def bars(rows: Sequence[dict[str, Any]], num_parameters: int) -> list[Bar]:
    """What is asked of the full run, and of the runs without something, as far as it was measured."""
    wholes = {row["run"]: row for row in rows if row["session"] == ALL}
    full = wholes[FULL]
    if num_parameters > _MAX_LARGE_PARAMETERS:
        return []
    if num_parameters > _MAX_SMALL_PARAMETERS:
        return _known([("key to suggestion, p50 ms", full["latency_p50_ms"], 350.0)], is_least=False)
    least = [
        ("answered before the next key", full["in_time_share"], 0.70),
        ("served without the model", full["typed_share"], 0.35),
    ]
    anchor_off = wholes.get("anchor off", {}).get("mean_computed_tokens")
    if anchor_off is not None and full["mean_computed_tokens"]:
        least.append(("anchor off, times the tokens computed", anchor_off / full["mean_computed_tokens"], 20.0))
    most = [
        ("key to suggestion, p50 ms", full["latency_p50_ms"], 150.0),
        ("key to suggestion, p95 ms", full["latency_p95_ms"], 450.0),
        ("prompt tokens computed on the same line, mean", full["mean_computed_tokens"], 4.0),
        ("prompt tokens computed on the same line, p95", full["p95_computed_tokens"], 8.0),
        ("wasted of computed", full.get("wasted_share"), 0.10),
    ]
    return _known(least, is_least=True) + _known(most, is_least=False)


def _known(asked: Sequence[tuple[str, float | None, float]], is_least: bool) -> list[Bar]:
    make = Bar.at_least if is_least else Bar.at_most
    return [make(name, value, limit) for name, value, limit in asked if value is not None]


def _counted(counts: TokenCounts | None) -> dict[str, Any]:
    if counts is None:
        return {}
    return {
        "num_rows": counts.computed,
        "num_wasted_rows": counts.wasted,
        "wasted_share": counts.wasted / counts.computed if counts.computed else 0.0,
        "num_idle_rows": counts.idle,
    }


def _computed(record: dict[str, Any]) -> int:
    """Tokens of the prompt that were not cached."""
    return int(record["prompt_tokens"]) - int(record["cached_tokens"])


def _share(keystrokes: Sequence[Keystroke], source: str) -> float:
    num_served = sum(bool(stroke.record.get("source") == source) for stroke in keystrokes)
    return num_served / len(keystrokes)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
