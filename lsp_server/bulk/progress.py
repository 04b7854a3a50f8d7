"""Shows a run on stderr while it goes on: live on a terminal, a few plain lines elsewhere, or JSON lines.

Everything here takes events and writes text; it knows nothing of how they come about.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from engine.bulk.wire import Progress as EngineProgress
from lsp_server.bulk.events import Checking, Computing, Event, Loaded, Loading, Planned, Settled
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.report import Report, lines_of
from lsp_server.bulk.wording import counted

_RATE_WINDOW_S = 10.0
_PLAIN_STEP_PERCENT = 10

OnEvent = Callable[[Event], None]


@contextmanager
def shown(kind: str, console: Console) -> Iterator[OnEvent]:
    """A sink that shows events as ``kind`` says: ``auto``, ``rich``, ``json`` or ``none``."""
    if kind == "none":
        yield lambda event: None
    elif kind == "json":
        yield lambda event: typer.echo(json.dumps(as_json(event)), err=True)
    elif kind == "rich" or console.is_terminal:
        live = _LiveProgress(console)
        with Live(live.renderable, console=console, transient=True):
            yield live.show
    else:
        yield _PlainProgress(console).show


def as_json(event: Event) -> dict[str, Any]:
    """The event for other programs; a fill's text is in the result, not here."""
    name = type(event).__name__.lower()
    if isinstance(event, Settled):
        counts = {"num_settled": event.num_settled, "num_failed": event.num_failed}
        return {"event": name, **_described(event.fill), **counts}
    if isinstance(event, Loaded):
        return {"event": name, **asdict(event.ready)}
    if isinstance(event, Computing):
        return {"event": name, **asdict(event.progress)}
    return {"event": name, **asdict(event)}


def _described(fill: Fill) -> dict[str, Any]:
    hole = fill.hole
    place = {"file": hole.source.relative, "line": hole.line, "column": hole.column, "kind": hole.kind}
    return {**place, "name": hole.name, "state": fill.state.value, "reason": fill.reason}


class Rates:
    """Tokens a second over the last seconds."""

    def __init__(self) -> None:
        self._latest: deque[EngineProgress] = deque()

    def add(self, progress: EngineProgress) -> None:
        """Take the next counts."""
        self._latest.append(progress)
        while len(self._latest) > 2 and progress.seconds - self._latest[1].seconds >= _RATE_WINDOW_S:
            self._latest.popleft()

    def per_s(self) -> tuple[float, float]:
        """Tokens read, that is of prompts, and written."""
        first, last = self._latest[0], self._latest[-1]
        if len(self._latest) == 1:
            first = EngineProgress(0.0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
        seconds = max(last.seconds - first.seconds, 1e-3)
        num_read = last.num_computed_tokens - first.num_computed_tokens
        return num_read / seconds, (last.num_generated_tokens - first.num_generated_tokens) / seconds


class _LiveProgress:
    """A bar of holes, and below it what the engine does."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rates = Rates()
        self._num_failed = 0
        self._holes = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            expand=True,
        )
        self._task = self._holes.add_task("planning", total=None, failed="")
        self._engine = Progress(TextColumn("  {task.description}", style="dim"), console=console)
        self._line = self._engine.add_task("", total=None)
        self.renderable = Group(self._holes, self._engine)

    def show(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Planned):
            self._holes.update(self._task, total=event.num_holes)
        elif isinstance(event, Settled):
            self._settled(event)
        elif isinstance(event, Loading):
            self._holes.update(self._task, description=f"loading {escape(event.model)}")
        elif isinstance(event, Loaded):
            self._holes.update(self._task, description="filling")
        elif isinstance(event, Computing):
            self._rates.add(event.progress)
            self._engine.update(self._line, description=_engine_line(event.progress, self._rates))
        elif isinstance(event, Checking):
            self._holes.update(self._task, description=_checking_line(event))
            self._engine.update(self._line, description="")
        else:
            _print_report(self._console, event.report)

    def _settled(self, event: Settled) -> None:
        failed = f"[red]{event.num_failed} failed[/]" if event.num_failed else ""
        self._holes.update(self._task, completed=event.num_settled, failed=failed)
        if event.fill.state is not FillState.FILLED:
            _print_failure(self._console, event.fill)


class _PlainProgress:
    """A line for each stage and each tenth of the holes, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rates = Rates()
        self._num_holes = 0
        self._next_percent = _PLAIN_STEP_PERCENT
        self._started_s = time.monotonic()
        self._engine = ""

    def show(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Planned):
            self._num_holes = event.num_holes
            self._print(f"{counted(event.num_holes, 'holes')} in {counted(event.num_files, 'files')}")
        elif isinstance(event, Settled):
            self._settled(event)
        elif isinstance(event, Loading):
            self._print(f"loading {event.model}")
        elif isinstance(event, Loaded):
            self._print(f"loaded in {event.ready.load_s:.1f} s, {counted(event.ready.max_batch, 'holes')} at once")
        elif isinstance(event, Computing):
            self._rates.add(event.progress)
            self._engine = _engine_line(event.progress, self._rates)
        elif isinstance(event, Checking):
            self._print(_checking_line(event))
        else:
            _print_report(self._console, event.report)

    def _settled(self, event: Settled) -> None:
        if event.fill.state is not FillState.FILLED:
            _print_failure(self._console, event.fill)
        percent = 100 * event.num_settled // self._num_holes
        if percent >= self._next_percent:
            self._next_percent = (percent // _PLAIN_STEP_PERCENT + 1) * _PLAIN_STEP_PERCENT
            elapsed_s = time.monotonic() - self._started_s
            engine = f"; {self._engine}" if self._engine else ""
            self._print(f"{percent}% ({event.num_settled} of {self._num_holes}) after {elapsed_s:.0f} s{engine}")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)


def _engine_line(progress: EngineProgress, rates: Rates) -> str:
    read, written = rates.per_s()
    return (
        f"batch {progress.num_running}, {progress.num_waiting} waiting, {written:.0f} tok/s written, {read:.0f} read,"
        f" cache {progress.kv_used_share:.0%}, padding {progress.padding_share:.1%}"
    )


def _checking_line(event: Checking) -> str:
    if event.num_fills == 0:
        return "check without fills"
    return f"check {event.num_runs}, with {counted(event.num_fills, 'fills')}"


def _print_failure(console: Console, fill: Fill) -> None:
    hole = fill.hole
    place = f"{hole.source.relative}:{hole.line}:{hole.column}"
    console.print(f"[red]✗[/] {escape(place)} {escape(fill.reason)}", soft_wrap=True)


def _print_report(console: Console, report: Report) -> None:
    mark = "[green]✓[/]" if report.num_filled == report.num_holes else "[yellow]![/]"
    first, *others = lines_of(report)
    console.print(f"{mark} {escape(first)}", soft_wrap=True)
    for line in others:
        console.print(f"  {line}", soft_wrap=True, markup=False, style="dim")
