"""``midline bench bulk``: fills holes whose right fills are known, by the real pipeline and engine.

All options are checked before anything is started.
"""

import asyncio
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from engine.bench.report import ModelResult, Report
from engine.bench.settings import parse_counts
from engine.checkpoint.store import resolve_model
from engine.config import EngineConfig
from engine.errors import ServiceError
from engine.machine.memory import allowed_bytes, available_bytes
from engine.paths import absolute_path
from engine.service.registration import normalised
from lsp_server.bench.bulk_beside import bulk_beside
from lsp_server.bench.bulk_measures import (
    MEMORY_COLUMNS,
    OUTCOME_COLUMNS,
    SPEED_COLUMNS,
    TYPING_ALONE,
    TYPING_BESIDE,
    TYPING_COLUMNS,
    bars,
    bulk_row,
    typing_row,
    with_ratios,
)
from lsp_server.bench.bulk_run import BulkBench, variants
from lsp_server.bench.bulk_workspace import MAX_TOKENS, make_workspace
from lsp_server.bench.measures import measure
from lsp_server.bench.run import Say, run_sessions
from lsp_server.bench.sessions import SourceFile, TypingSession, make_sessions
from lsp_server.bulk.wording import counted
from lsp_server.commands.bench_keystrokes import bundled_files, enabled_config, finish, out_folder, read_files
from lsp_server.commands.bulk_options import BulkOptions
from lsp_server.commands.settle import settle
from lsp_server.errors import UsageError

_DEFAULTS: dict[str, Any] = {"holes": 192, "keys": 150, "caps": (1, 4, 16, 64)}
_QUICK: dict[str, Any] = {"holes": 6, "keys": 12, "caps": (4,)}
_LIMITS = {"holes": (1, 100_000), "keys": (0, 100_000), "seed": (0, 2**63 - 1)}
_CORPUS_CHARS = 4500
_KEYS_PER_SESSION = 75
_SPIN = ("GOMP_SPINCOUNT", "1000")  # all engines alike; see engine.service.__main__
_NOTES = [
    f"bodies of functions and ends of lines are cut out of real files; a fill has at most {MAX_TOKENS} tokens, and a "
    "second, sampled attempt if the first is no good; every run has an engine and a journal of its own",
    "one by one: each request alone, under the profile completion, drafts included, as a loop over midline complete "
    "with a warm engine; cap: so many at once; auto: as many as are measured to be best; unsorted: in the files' order",
    "seconds: without loading; tok/s: read and written; decode/s: written in passes that compute nothing else",
    "roofline: the least time for the operations that had to be done at the rate of products, of the time; the rate is "
    "the median of what is measured behind each run",
    "padding: of the keys that attention reads, those that no request wants; KV peak: of the cache's blocks; peak MB: "
    "of the process",
    "filled: verified; exact: what was cut out, but for white space around it; parse: the original file with the fill "
    "has no more syntax errors; distinct: tokens of all prompts, of what two have in common at their start only one",
    "typing: midline bench keystrokes, alone and while midline bulk fills the same holes in a process of its own; "
    "answers count second attempts",
]


@dataclass(frozen=True)
class _Plan:
    """What is measured, checked."""

    files: list[SourceFile]
    config: EngineConfig
    conditions: dict[str, Any]

    @property
    def sessions(self) -> list[TypingSession]:
        """Of the typist; none for 0 keys."""
        num_keys = self.conditions["keys"]
        num_sessions = -(-num_keys // _KEYS_PER_SESSION)
        seed = self.conditions["seed"]
        return make_sessions(self.files, num_sessions, num_keys // num_sessions, seed) if num_keys else []


def run_bench_bulk(
    files: list[str],
    model: str | None,
    caps: str | None,
    numbers: Mapping[str, int | None],
    out: str | None,
    is_quick: bool,
    as_json: bool,
) -> None:
    """Measure, print and write. ``numbers`` are those of ``_LIMITS`` by name; what is None keeps its default."""
    given: dict[str, Any] = {name: number for name, number in numbers.items() if number is not None}
    for name, number in given.items():
        least, most = _LIMITS[name]
        if not least <= number <= most:
            raise UsageError(f"--{name} is {number}; it must be {least} to {most}")
    if caps is not None:
        given["caps"] = parse_counts("caps", caps)
        if not all(given["caps"]) or len(set(given["caps"])) < len(given["caps"]):
            raise UsageError(f"--caps is {caps!r}; it must be different numbers from 1 on")
    conditions = {"seed": 0, **(_QUICK if is_quick else _DEFAULTS), **given}
    conditions["context_chars"] = BulkOptions().context_chars
    sources = _relative(read_files(files)) if files else _corpus()
    folder = out_folder(out)
    config = normalised(settle(enabled_config(model).engine))
    resolve_model(config.model)
    if importlib.util.find_spec("torch") is None:
        raise ServiceError("the engine is not installed; in Midline's folder run: pip install '.[local]'")
    os.environ.setdefault(*_SPIN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the engines must end as well
    plan = _Plan(sources, config, conditions)
    report = asyncio.run(_measure(plan, is_asked=not is_quick))
    finish(report, (SPEED_COLUMNS, MEMORY_COLUMNS, OUTCOME_COLUMNS, TYPING_COLUMNS), folder, as_json)


def _corpus() -> list[SourceFile]:
    """Of Midline's own files the smaller ones: reading long prompts takes the same time in all runs."""
    return [file for file in bundled_files() if len(file.text) <= _CORPUS_CHARS]


def _relative(files: Sequence[SourceFile]) -> list[SourceFile]:
    """The same with names below a folder that they have in common."""
    paths = [absolute_path(file.name) for file in files]
    root = os.path.commonpath([path.parent for path in paths])
    named = {path.relative_to(root).as_posix(): file for path, file in zip(paths, files, strict=True)}
    return [replace(file, name=name) for name, file in named.items()]


async def _measure(plan: _Plan, is_asked: bool) -> Report:
    errors = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        errors.print(escape(text), style="dim", soft_wrap=True)

    allowed = allowed_bytes(plan.config.max_memory_mb, available_bytes())
    with tempfile.TemporaryDirectory(prefix="midline-bench-") as folder:
        conditions, root = plan.conditions, Path(folder)
        tasks = make_workspace(root, plan.files, conditions["holes"], conditions["seed"])
        if not tasks:
            raise UsageError("no body and no line in the files could be cut out; give other files")
        bench = BulkBench(root, tasks, plan.config, conditions["context_chars"])
        rows = []
        for variant in variants(conditions["caps"]):
            say(f"{variant.name}: {counted(len(tasks), 'holes')} with {plan.config.model}")
            result = await bench.run(variant)
            rows.append(bulk_row(variant.name, result, tasks, bench.facts["num_distinct_tokens"]))
        rows = with_ratios(rows) + await _typing_rows(plan, root, say)
    facts = {name: bench.facts[name] for name in ("num_parameters", "device", "kernels")}
    facts |= {"dtype": rows[0]["precision"], "allowed_bytes": allowed}
    remark = (
        f"the engine may take {allowed / 1e6:.0f} MB in all (engine.max_memory_mb, by default half of what is free)"
    )
    outcome = ModelResult(
        plan.config.model, facts, rows, bars=bars(rows, allowed) if is_asked else [], remarks=[remark]
    )
    conditions["files"] = sorted({task.cut.file.name for task in tasks})
    return Report("bulk", bench.facts["machine"], conditions, _NOTES, [outcome])


async def _typing_rows(plan: _Plan, root: Path, say: Say) -> list[dict[str, Any]]:
    sessions, model = plan.sessions, plan.config.model
    if not sessions:
        return []
    say("typing, alone")
    alone = await run_sessions(model, sessions, "", say)
    say("typing, beside bulk")
    async with bulk_beside(root, model, plan.conditions["context_chars"]) as beside:
        both = await run_sessions(model, sessions, "", say)
    return [
        typing_row(TYPING_ALONE, measure(alone.keystrokes), None),
        typing_row(TYPING_BESIDE, measure(both.keystrokes), beside),
    ]
