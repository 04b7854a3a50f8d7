"""``midline bulk``: fills all holes of a workspace. The result goes to stdout or ``--out``, all else to stderr.

What is wrong with the options is found before the model is loaded. What was computed is in the journal before anything
is written, and what is written is taken back unless all of it could be, result included.
"""

import asyncio
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import typer
from rich.console import Console

from engine.checkpoint.store import resolve_model
from engine.config import EngineConfig
from engine.paths import absolute_path, config_file
from engine.service.registration import normalised
from lsp_server.bulk import emit
from lsp_server.bulk.apply import FileOutcome, FileState
from lsp_server.bulk.check import Check
from lsp_server.bulk.editor_files import EditorFiles
from lsp_server.bulk.events import Done
from lsp_server.bulk.files import read_original
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.grammars import LANGUAGES
from lsp_server.bulk.holes import KindOptions
from lsp_server.bulk.journal import Journal, default_path
from lsp_server.bulk.old_journals import remove_old_journals
from lsp_server.bulk.progress import OnEvent, shown
from lsp_server.bulk.report import Report, engine_report, report_of
from lsp_server.bulk.requests import RequestOptions, model_identity
from lsp_server.bulk.run import RunOptions, RunResult, run
from lsp_server.bulk.select import Selection, SelectOptions, list_table, select
from lsp_server.bulk.undo import Step, log_path, one_step, take_back
from lsp_server.bulk.wording import counted
from lsp_server.commands.bulk_options import FORMATS, PROGRESS, BulkOptions
from lsp_server.commands.settle import settle
from lsp_server.errors import UsageError
from lsp_server.settings import load_config


def run_bulk(options: BulkOptions) -> int:
    """Do it; returns the exit code: 0 if all holes are filled, also if there are none, else 1."""
    _check_options(options)
    root = absolute_path(options.root or ".")
    console = Console(stderr=True, highlight=False, emoji=False, quiet=options.quiet)
    if options.list_only:
        _list(_select(root, options, console), options, console)
        return 0
    journal_path = absolute_path(options.journal) if options.journal else default_path(root)
    undo_log = log_path(journal_path)
    with Journal.open(journal_path) as journal, _told_to_go_on(console):
        remove_old_journals()
        if options.apply and not _took_back(undo_log, console):
            return 1
        selection = _select(root, options, console)
        if not selection.holes:
            console.print(_counted(selection, options), soft_wrap=True, markup=False)
        with one_step(undo_log, _complain) if options.apply else nullcontext() as step:
            return _Bulk(root, options, console, journal, step).fill(selection)


@dataclass(frozen=True)
class _Bulk:
    """One run of the command, with all that does not change in it."""

    root: Path
    options: BulkOptions
    console: Console
    journal: Journal
    step: Step | None
    """To write the files in; None in a dry run."""

    def fill(self, selection: Selection) -> int:
        """Compute, write and tell; returns the exit code."""
        fills, problems = list[Fill](), list[str]()
        if selection.holes:
            config = self._engine_config()
            with shown("none" if self.options.quiet else self.options.progress, self.console) as on_event:
                check = self._check(selection, on_event)
                result = asyncio.run(run(selection.holes, self.journal, self._run_options(config), on_event))
                fills, outcomes = self._write(list(result.fills), check)
                on_event(Done(_report(fills, result)))
            problems += [item.reason for item in outcomes if item.state in (FileState.CONFLICT, FileState.FAILED)]
        problems += self._emit(fills)
        for problem in problems:
            _complain(problem)
        if self.step and self.step.backups.hint:
            self.console.print(self.step.backups.hint, soft_wrap=True, markup=False)
        return 0 if not problems and all(fill.state is FillState.FILLED for fill in fills) else 1

    def _engine_config(self) -> EngineConfig:
        config = load_config(config_file()).engine
        if self.options.model is not None:
            config = replace(config, model=self.options.model)
        return normalised(settle(config))

    def _run_options(self, config: EngineConfig) -> RunOptions:
        return RunOptions(
            engine=config,
            model_identity=model_identity(resolve_model(config.model), config),
            context=EditorFiles({}).context(self.root, self.options.context_chars),
            requests=RequestOptions(seed=self.options.seed),
            max_batch=self.options.max_batch,
            is_sequential=self.options.sequential,
        )

    def _check(self, selection: Selection, on_event: OnEvent) -> Check | None:
        if self.options.check is None:
            return None
        check = Check(self.options.check, self.root, on_event)
        check.try_without_fills([hole.source.relative for hole in selection.holes])
        return check

    def _write(self, fills: list[Fill], check: Check | None) -> tuple[list[Fill], list[FileOutcome]]:
        if self.step is None:
            return fills, []
        return check.keep_passing(fills, self.step) if check else (fills, self.step.write(fills))

    def _emit(self, fills: list[Fill]) -> tuple[str, ...]:
        """Give the result out; returns what is missing in it."""
        problems: tuple[str, ...] = ()
        kind = self.options.format or ("summary" if self.options.apply else "diff")
        if kind == "diff":
            diff = emit.unified_diff(fills, self.step.backups.original if self.step else read_original)
            content, problems = diff.content, diff.problems
        elif kind == "jsonl":
            content = emit.jsonl(fills)
        elif self.options.out is None:
            Console(highlight=False).print(emit.summary(fills))
            return ()
        else:
            text = io.StringIO()
            Console(file=text).print(emit.summary(fills))
            content = text.getvalue().encode()
        if self.options.out is None:
            typer.echo(content, nl=False)
        else:
            emit.write_out(absolute_path(self.options.out), content)
        return problems


def _report(fills: list[Fill], result: RunResult) -> Report:
    engine = None
    if result.ready is not None and result.summary is not None:
        ready = result.ready
        engine = engine_report(ready.model, ready.precision, ready.load_s, result.summary)
    return report_of(fills, result.seconds, engine)


@contextmanager
def _told_to_go_on(console: Console) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        console.print("what was computed is kept: run the same command again to go on", soft_wrap=True)
        raise


def _took_back(undo_log: Path, console: Console) -> bool:
    """Undo what an interrupted run has written; False if that is not possible yet."""
    taken_back = take_back(undo_log)
    if taken_back.num_files:
        files = counted(taken_back.num_files, "files")
        console.print(f"took back {files} that an interrupted run had written", soft_wrap=True)
    for line in taken_back.lines:
        _complain(line)
    return not taken_back.problems


def _complain(line: str) -> None:
    sys.stderr.write(f"midline: {line}\n")


def _check_options(options: BulkOptions) -> None:
    """Raises ``UsageError`` for options that contradict each other or mean nothing."""
    if options.format is not None and options.format not in FORMATS:
        raise UsageError(f"--format is {options.format!r}; it must be one of {', '.join(FORMATS)}")
    if options.progress not in PROGRESS:
        raise UsageError(f"--progress is {options.progress!r}; it must be one of {', '.join(PROGRESS)}")
    if options.json and not options.list_only:
        raise UsageError("--json goes with --list; the result as JSON lines is --format jsonl")
    if options.check is not None and not options.apply:
        raise UsageError("--check needs --apply: it runs on the files with their fills")


def _kinds(options: BulkOptions) -> tuple[str, ...]:
    if options.kind:
        return tuple(options.kind)
    return ("cursors",) if options.cursors else SelectOptions().kinds


def _select(root: Path, options: BulkOptions, console: Console) -> Selection:
    markers: dict[str, tuple[str, ...]] = {}
    for given in options.marker or []:
        language, marker = _split_marker(given)
        markers[language] = (*markers.get(language, ()), marker)
    select_options = SelectOptions(
        kinds=_kinds(options),
        include=tuple(options.include or ()),
        exclude=tuple(options.exclude or ()),
        languages=tuple(options.lang or ()),
        max_holes=options.max_holes,
        cursors_file=absolute_path(options.cursors) if options.cursors else None,
        kind_options=KindOptions(markers, options.max_tokens),
    )
    paths = [absolute_path(path) for path in options.paths or [str(root)]]

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False, style="dim")

    return select(root, paths, select_options, say)


def _list(selection: Selection, options: BulkOptions, console: Console) -> None:
    table = list_table(selection)
    if options.json:
        skipped = [asdict(skipped) for skipped in selection.skipped]
        typer.echo(json.dumps({**asdict(table), "num_files": selection.num_files, "skipped": skipped}, indent=2))
        return
    for row in table.rows:
        typer.echo(f"{row.place}\t{row.kind}\t{row.name}")
    console.print(_counted(selection, options), soft_wrap=True, markup=False)


def _counted(selection: Selection, options: BulkOptions) -> str:
    """What was found where."""
    counts = list_table(selection).num_by_kind
    found = ", ".join(counted(count, kind) for kind, count in counts.items()) or f"no {' or '.join(_kinds(options))}"
    skipped = f", {len(selection.skipped)} skipped" if selection.skipped else ""
    return f"{found} in {counted(selection.num_files, 'files')}{skipped}"


def _split_marker(given: str) -> tuple[str, str]:
    """The language that a marker is for, and the marker; ``*`` is every language."""
    language, separator, marker = given.partition("=")
    if not (separator and language in LANGUAGES):
        language, marker = "*", given
    if not marker.strip():
        raise UsageError(f"--marker {given!r} is no text that could mark a hole")
    return language, marker
