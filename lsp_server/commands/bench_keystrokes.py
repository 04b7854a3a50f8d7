"""``midline bench keystrokes``: types into real files, with the real language server and engine behind it.

All options are checked before anything is started.
"""

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from engine.bench.plot import write_plot
from engine.bench.report import Column, ModelResult, Report, print_report, write_files
from engine.bench.settings import make_folder
from engine.checkpoint.store import resolve_model
from engine.errors import ServiceError
from engine.machine.record import cpu_name
from engine.paths import absolute_path, config_file
from engine.service.client import HealthReport
from lsp_server.bench.measures import FULL, SPEED_COLUMNS, TOKEN_COLUMNS, bars, run_rows
from lsp_server.bench.run import RunResult, run_sessions
from lsp_server.bench.sessions import SourceFile, TypingSession, make_sessions
from lsp_server.commands.settle import settle
from lsp_server.completion.ablation import ABLATIONS
from lsp_server.config import MidlineConfig
from lsp_server.errors import UsageError
from lsp_server.settings import load_config

_DEFAULTS = {"sessions": 6, "keys": 125}
_QUICK = {"sessions": 2, "keys": 75}
_LIMITS = {"sessions": (1, 1000), "keys": (1, 100_000), "seed": (0, 2**63 - 1)}
_CORPUS_LINES = range(40, 400)
_PLAIN_WIDTH = 130
"""Of tables where there is no terminal."""
_LANGUAGES = {
    ".c": "c",
    ".cpp": "cpp",
    ".go": "go",
    ".java": "java",
    ".js": "javascript",
    ".py": "python",
    ".rs": "rust",
    ".ts": "typescript",
}
_NOTES = [
    "open loop: a key comes when it is due, whatever the server does, and times count from then; in time: answered "
    "before the next key was due; p50, p95, p99: of the answered ones, the others were cancelled by the next key",
    "within a word a key comes 180 ms after the last on average, after words and lines later; with typos and Backspace,"
    " Enter with the editor's indentation, its closing brackets, and on half of the lines Tab for a right suggestion",
    "no model: the rest of what had been suggested; joined: a generation that ran already; both of all keys",
    "first right: of the lines with a suggestion, those whose first says nothing but what should come; saved: keys",
    "prompt, drafted, accepted: of the model's requests; computed: their prompt tokens that were not cached, on the "
    "same line as the key before; all rows: of forward passes; wasted: of these, for requests that were cancelled and "
    "that the next one does not begin with; idle rows: computed ahead while the user rests",
    "each run has a server and an engine of its own, so that none finds what another has cached",
]


def run_keystrokes(
    files: list[str],
    model: str | None,
    numbers: Mapping[str, int | None],
    ablations: str | None,
    out: str | None,
    is_quick: bool,
    as_json: bool,
) -> None:
    """Measure, print and write. ``numbers`` are those of ``_LIMITS`` by name; what is None keeps its default."""
    given = {name: number for name, number in numbers.items() if number is not None}
    for name, number in given.items():
        least, most = _LIMITS[name]
        if not least <= number <= most:
            raise UsageError(f"--{name} is {number}; it must be {least} to {most}")
    conditions: dict[str, Any] = {"seed": 0, **(_QUICK if is_quick else _DEFAULTS), **given}
    runs = ["", *parse_ablations(ablations)]
    config = enabled_config(model)
    sources = read_files(files) if files else bundled_files()
    sessions = make_sessions(sources, conditions["sessions"], conditions["keys"], conditions["seed"])
    if not sessions:
        raise UsageError(f"{', '.join(files)}: no line of code in there; give other files")
    folder = out_folder(out)
    name = settle(config.engine).model
    resolve_model(name)
    if importlib.util.find_spec("torch") is None:
        raise ServiceError("the engine is not installed; in Midline's folder run: pip install '.[local]'")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the engine must end as well
    results = asyncio.run(_measure(name, sessions, runs))
    conditions |= {"files": [session.file.name for session in sessions]}
    conditions |= {"completion": asdict(config.completion), "context": asdict(config.context)}
    is_asked = not files and not is_quick and not given.keys() & _DEFAULTS.keys()
    finish(_report(name, results, sessions, conditions, is_asked), (SPEED_COLUMNS, TOKEN_COLUMNS), folder, as_json)


def parse_ablations(text: str | None) -> list[str]:
    """Names between commas. Raises ``UsageError``."""
    names = [] if text is None else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ABLATIONS:
            known = ", ".join(ABLATIONS)
            raise UsageError(f"--ablate is {name[:40]!r}; it must be some of {known}, between commas")
    return list(dict.fromkeys(names))


def read_files(paths: Sequence[str]) -> list[SourceFile]:
    """Files of the user. Raises ``UsageError`` for one that cannot be read as text."""
    return [_read(absolute_path(path), path) for path in paths]


def bundled_files() -> list[SourceFile]:
    """Midline's own source files of a usual length."""
    root = Path(__file__).parents[2]
    paths = sorted(path for package in ("engine", "lsp_server") for path in (root / package).rglob("*.py"))
    found = [_read(path, path.relative_to(root).as_posix()) for path in paths]
    return [file for file in found if file.text.count("\n") in _CORPUS_LINES]


def _read(path: Path, name: str) -> SourceFile:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name} is no UTF-8 text; give source files") from None
    return SourceFile(name, _LANGUAGES.get(path.suffix, "plaintext"), text)


def enabled_config(model: str | None) -> MidlineConfig:
    """The user's settings, with another model if one is given. Raises ``UsageError`` where Midline is switched off."""
    config = load_config(config_file())
    if not config.enabled:
        raise UsageError(f"completions are switched off by 'enabled = false' in {config_file()}; change that first")
    return config if model is None else replace(config, engine=replace(config.engine, model=model))


def out_folder(out: str | None) -> Path | None:
    """The folder of ``--out``, made if need be. Raises ``UsageError``, ``ConfigError``."""
    if out == "":
        raise UsageError("--out is empty; it must be a folder")
    return None if out is None else make_folder(str(absolute_path(out)))


async def _measure(model: str, sessions: Sequence[TypingSession], runs: Sequence[str]) -> dict[str, RunResult]:
    """Run's name -> result."""
    errors = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        errors.print(escape(text), style="dim", soft_wrap=True)

    results = {}
    for ablation in runs:
        name = f"{ablation} off" if ablation else FULL
        say(f"{name}: starting the language server and loading {model}")
        results[name] = await run_sessions(model, sessions, ablation, say)
    return results


def _report(
    model: str,
    results: Mapping[str, RunResult],
    sessions: Sequence[TypingSession],
    conditions: dict[str, Any],
    is_asked: bool,
) -> Report:
    rows: list[dict[str, Any]] = []
    for run, result in results.items():
        names = [Path(session.file.name).name for session in sessions] if run == FULL else []
        rows += run_rows(run, names, result.keystrokes, result.num_saved_chars, result.counts)
    health = results[FULL].health
    remarks = [f"{name.removesuffix(' off')} off: {ABLATIONS[name.removesuffix(' off')]}" for name in list(results)[1:]]
    remarks += [
        f"{run}: the server's records do not match the requests, so what is theirs is not shown"
        for run, result in results.items()
        if not result.has_records
    ]
    facts = {"num_parameters": health.num_parameters, "dtype": health.dtype, "device": health.device}
    facts |= {"kernels": health.kernels, "memory_bytes": health.memory_bytes}
    asked = bars(rows, health.num_parameters) if is_asked else []
    outcome = ModelResult(model, facts, rows, bars=asked, remarks=remarks)
    return Report("keystrokes", _machine(health), conditions, _NOTES, [outcome])


def _machine(health: HealthReport) -> dict[str, str | int]:
    """What a reader must know to compare the numbers."""
    return {
        "cpu": cpu_name(),
        "num_cpus": os.cpu_count() or 0,
        "num_threads": health.num_threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def finish(report: Report, tables: Sequence[Sequence[Column]], folder: Path | None, as_json: bool) -> None:
    """Write the files and print: tables and JSON, or the JSON alone."""
    errors = Console(stderr=True, highlight=False)
    if folder is not None:
        plot = write_plot(report, folder)
        if plot is None:
            errors.print("no plot without matplotlib; in Midline's folder run: pip install '.\\[bench]'", style="dim")
        paths = [*write_files(report, folder), *([plot] if plot else [])]
        errors.print(escape("written: " + ", ".join(map(str, paths))), style="dim", soft_wrap=True)
    if as_json:
        sys.stdout.write(report.as_json() + "\n")
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    print_report(report, tables, console)
