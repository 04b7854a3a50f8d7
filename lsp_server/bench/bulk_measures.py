"""From runs to numbers: one row for each, and what is asked of them. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from engine.bench.report import Bar, Column
from lsp_server.bench.bulk_beside import Beside
from lsp_server.bench.bulk_run import AUTO, ONE_BY_ONE, UNSORTED
from lsp_server.bench.bulk_workspace import Task
from lsp_server.bulk.report import engine_report
from lsp_server.bulk.run import RunResult

TYPING_ALONE, TYPING_BESIDE = "alone", "beside bulk"

SPEED_COLUMNS = (
    Column("run", "run"),
    Column("batch", "max_running"),
    Column("seconds", "compute_s", num_decimals=1),
    Column("holes/min", "holes_per_min", num_decimals=1),
    Column("x one by one", "times_one_by_one", num_decimals=2),
    Column("tok/s", "tokens_per_s"),
    Column("written/s", "generated_tokens_per_s"),
    Column("decode/s", "decode_tokens_per_s"),
    Column("roofline %", "roofline_share", scale=100.0),
)
MEMORY_COLUMNS = (
    Column("run", "run"),
    Column("loaded s", "load_s", num_decimals=1),
    Column("padding %", "padding_share", scale=100.0, num_decimals=1),
    Column("KV peak %", "max_kv_used_share", scale=100.0),
    Column("preempted", "num_preemptions"),
    Column("peak MB", "peak_memory_bytes", scale=1e-6),
)
OUTCOME_COLUMNS = (
    Column("run", "run"),
    Column("holes", "num_holes"),
    Column("filled %", "filled_share", scale=100.0),
    Column("exact %", "exact_share", scale=100.0),
    Column("parse %", "parse_share", scale=100.0),
    Column("2nd tries", "num_second_attempts"),
    Column("prompts", "num_prompt_tokens"),
    Column("cached %", "cached_share", scale=100.0),
    Column("computed", "num_computed_tokens"),
    Column("distinct", "num_distinct_tokens"),
    Column("written", "num_generated_tokens"),
)
TYPING_COLUMNS = (
    Column("typing", "typing"),
    Column("keys", "num_keystrokes"),
    Column("in time %", "in_time_share", scale=100.0),
    Column("p50 ms", "latency_p50_ms"),
    Column("p95 ms", "latency_p95_ms"),
    Column("p99 ms", "latency_p99_ms"),
    Column("cancelled", "num_cancelled"),
    Column("bulk tok/s", "bulk_tokens_per_s"),
    Column("bulk answers/min", "bulk_answers_per_min", num_decimals=1),
)


def bulk_row(name: str, result: RunResult, tasks: Sequence[Task], num_distinct_tokens: int) -> dict[str, Any]:
    """A run of the pipeline in numbers; it must have computed."""
    assert result.ready is not None
    assert result.summary is not None
    ready, num_holes = result.ready, len(tasks)
    engine = vars(engine_report(ready.model, ready.precision, ready.load_s, result.summary))
    pairs = list(zip(tasks, result.fills, strict=True))
    return {
        "run": name,
        "num_holes": num_holes,
        "max_running": engine["max_batch"],
        "holes_per_min": num_holes * 60 / engine["compute_s"],
        "tokens_per_s": (engine["num_computed_tokens"] + engine["num_generated_tokens"]) / engine["compute_s"],
        "filled_share": sum(bool(fill.text) for fill in result.fills) / num_holes,
        "exact_share": sum(task.is_exact(fill) for task, fill in pairs) / num_holes,
        "parse_share": sum(task.parses(fill) for task, fill in pairs) / num_holes,
        "operations_per_s": result.summary.operations_per_s,
        "num_second_attempts": sum(fill.num_attempts > 1 for fill in result.fills),
        "num_prompt_tokens": engine["num_computed_tokens"] + engine["num_cached_tokens"],
        "num_distinct_tokens": num_distinct_tokens,
        **{name: value for name, value in engine.items() if name not in ("model", "max_batch")},
    }


def with_ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row with its holes a minute beside those of one by one, and its share of one roofline for all.

    The machine's rate is the median of what the runs measured: of one moment, other programs may take most.
    """
    (alone,) = (row for row in rows if row["run"] == ONE_BY_ONE)
    measured = [row["operations_per_s"] for row in rows if row["operations_per_s"]]
    return [
        {
            **row,
            "times_one_by_one": row["holes_per_min"] / alone["holes_per_min"],
            "roofline_share": row["roofline_share"]
            and row["roofline_share"] * row["operations_per_s"] / median(measured),
        }
        for row in rows
    ]


def typing_row(name: str, measured: Mapping[str, Any], beside: Beside | None) -> dict[str, Any]:
    """A run of the typist, with what was computed beside it."""
    row = {"typing": name, **measured}
    if beside is not None and beside.seconds:
        row["bulk_tokens_per_s"] = beside.num_tokens / beside.seconds
        row["bulk_answers_per_min"] = beside.num_answers * 60 / beside.seconds
    return row


def bars(rows: Sequence[dict[str, Any]], allowed_bytes: int) -> list[Bar]:
    """What is asked of the runs."""
    bulk = {row["run"]: row for row in rows if "run" in row}
    typing = {row["typing"]: row for row in rows if "typing" in row}
    auto, alone = bulk[AUTO], bulk[ONE_BY_ONE]
    fixed = [row["holes_per_min"] for name, row in bulk.items() if name not in (AUTO, ONE_BY_ONE, UNSORTED)]
    asked = [
        Bar.at_least("auto, times the holes a minute of one by one", auto["times_one_by_one"], 1.8),
        *_ratio("auto, times the decode tokens a second of one by one", auto, alone, "decode_tokens_per_s", 6.0),
    ]
    if auto["roofline_share"] is not None:
        asked.append(Bar.at_least("auto, end to end, of the roofline", auto["roofline_share"], 0.6))
    if fixed:
        asked.append(Bar.at_least("auto, of the best fixed cap", auto["holes_per_min"] / max(fixed), 0.9))
    if auto["num_distinct_tokens"]:
        shared = auto["num_computed_tokens"] / auto["num_distinct_tokens"]
        asked.append(Bar.at_most("computed of distinct prompt tokens", shared, 1.05))
    asked += [
        Bar.at_most("preemptions in all runs", float(sum(row["num_preemptions"] for row in bulk.values())), 0.0),
        Bar.at_most("padding, sorted", auto["padding_share"], 0.05),
        Bar.at_most("peak memory, of what is allowed", auto["peak_memory_bytes"] / allowed_bytes, 1.0),
    ]
    if TYPING_BESIDE in typing and (idle_ms := typing[TYPING_ALONE]["latency_p95_ms"]):
        beside_ms = typing[TYPING_BESIDE]["latency_p95_ms"]
        asked.append(Bar.at_most("typing beside bulk, times the p95 of typing alone", beside_ms / idle_ms, 2.0))
    return asked


def _ratio(name: str, row: dict[str, Any], other: dict[str, Any], value: str, limit: float) -> list[Bar]:
    return [Bar.at_least(name, row[value] / other[value], limit)] if row[value] and other[value] else []
