"""``midline models``: shows the model store on a terminal or as JSON; the work is in ``engine.checkpoint``.

Progress goes to stderr, results to stdout, so that ``$(midline models path NAME)`` works in scripts.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from engine.checkpoint.download import ProgressSink, format_bytes
from engine.checkpoint.store import ListedModel, list_models, pull_model, remove_model, resolve_model
from engine.config import AUTO_MODEL, EngineConfig
from engine.errors import CheckpointError, ModelNotDownloadedError
from engine.paths import config_file, models_dir
from lsp_server.commands.settle import name_to_pull, settle
from lsp_server.errors import UsageError
from lsp_server.settings import load_config

PLAIN_STEP_PERCENT = 10


def run_list(as_json: bool) -> None:
    """Print the known models and which are downloaded."""
    models, auto = list_models(), settle(_settings_of_auto()).model
    if as_json:
        listing = {"folder": str(models_dir()), "models": [_as_dict(model, auto) for model in models]}
        typer.echo(json.dumps(listing, indent=2))
        return
    console = Console(highlight=False)
    console.print(_table(models, auto))
    console.print(f"Folder: {escape(str(models_dir()))}", style="dim", soft_wrap=True)


def run_pull(name: str) -> None:
    """Download a model unless it is there, and say where it lies."""
    console = Console(stderr=True, highlight=False)
    if name == AUTO_MODEL:
        name = name_to_pull(_settings_of_auto())
    try:
        resolved = resolve_model(name)
    except (ModelNotDownloadedError, CheckpointError):  # a damaged download is repaired by pulling again
        started_s = time.monotonic()
        try:
            with download_progress(console) as progress:
                resolved = pull_model(name, progress)
        except KeyboardInterrupt:
            console.print("run the same command again to go on", soft_wrap=True)
            raise
        took_s = time.monotonic() - started_s
        console.print(f"[green]✓[/] {escape(name)} is downloaded and verified ({took_s:.1f} s)", soft_wrap=True)
    else:
        console.print(f"[green]✓[/] {escape(name)} is already here", soft_wrap=True)
    typer.echo(resolved.path)


def run_path(name: str) -> None:
    """Print the path of a model that is on this machine."""
    if name == AUTO_MODEL:
        name = settle(_settings_of_auto()).model
    typer.echo(resolve_model(name).path)


def run_remove(name: str) -> None:
    """Delete a downloaded model and say how much space that freed."""
    if name == AUTO_MODEL:
        raise UsageError("auto is whichever model fits; name the one to remove: midline models list")
    freed_bytes = remove_model(name)
    console = Console(stderr=True, highlight=False)
    console.print(f"removed {escape(name)} ({format_bytes(freed_bytes)})", soft_wrap=True)


def _settings_of_auto() -> EngineConfig:
    return replace(load_config(config_file()).engine, model=AUTO_MODEL)


@contextmanager
def download_progress(console: Console) -> Iterator[ProgressSink]:
    """A sink that shows a download on ``console``: a live bar on a terminal, a few plain lines elsewhere."""
    if not console.is_terminal:
        yield _PlainProgress(console)
        return
    bar = _BarProgress(console)
    with Live(bar.renderable, console=console, transient=True):
        yield bar


class _BarProgress:
    """A spinner with the stage, and under it a bar with bytes, rate and time left once bytes are counted."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = Progress(SpinnerColumn(), TextColumn("{task.description}"))
        self._bytes = Progress(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
        self._stage_task = self._stage.add_task("starting", total=None)
        self._bytes_task: TaskID | None = None
        self.renderable = Group(self._stage, self._bytes)

    def stage(self, text: str) -> None:
        self._stage.update(self._stage_task, description=escape(text))
        if self._bytes_task is not None:
            self._bytes.remove_task(self._bytes_task)
            self._bytes_task = None

    def update(self, done_bytes: int, total_bytes: int) -> None:
        if self._bytes_task is None:
            # What an earlier call had fetched is there from the start and must not count as speed.
            self._bytes_task = self._bytes.add_task("", completed=done_bytes, total=total_bytes)
        self._bytes.update(self._bytes_task, completed=done_bytes, total=total_bytes)

    def note(self, text: str) -> None:
        self._console.print(escape(text), style="yellow", soft_wrap=True)


class _PlainProgress:
    """One line per stage and per tenth of the bytes, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_percent = 0
        self._start: tuple[float, int] | None = None

    def stage(self, text: str) -> None:
        self._next_percent = 0
        self._start = None
        self._print(text)

    def update(self, done_bytes: int, total_bytes: int) -> None:
        start_s, start_bytes = self._start = self._start or (time.monotonic(), done_bytes)
        percent = 100 * done_bytes // max(total_bytes, 1)
        if percent < self._next_percent:
            return
        self._next_percent = (percent // PLAIN_STEP_PERCENT + 1) * PLAIN_STEP_PERCENT
        elapsed_s = time.monotonic() - start_s
        rate = f", {format_bytes(round((done_bytes - start_bytes) / elapsed_s))}/s" if elapsed_s > 0.05 else ""
        self._print(f"  {percent}% ({format_bytes(done_bytes)} of {format_bytes(total_bytes)}{rate})")

    def note(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(escape(text), soft_wrap=True)


def _table(models: list[ListedModel], auto: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("Model", "Size", "Context", "Licence", "State"):
        table.add_column(header, no_wrap=header in ("Model", "Size"), overflow="fold")
    for model in models:
        entry = model.entry
        table.add_row(
            f"[bold]{escape(model.name)}[/]" if model.name == auto else escape(model.name),
            format_bytes(model.size_bytes),
            f"{entry.context_tokens:,}" if entry else "",
            entry.licence if entry else "",
            ", ".join(_states(model, auto)),
        )
    return table


def _states(model: ListedModel, auto: str) -> Iterator[str]:
    if model.path:
        yield "[green]downloaded[/]"
    elif model.num_partial_bytes:
        yield f"[yellow]{format_bytes(model.num_partial_bytes)} downloaded, pull again to finish[/]"
    else:
        yield "[dim]not downloaded[/]"
    if model.name == auto:
        yield "auto"
    if model.entry and model.entry.is_experimental:
        yield "[magenta]experimental[/]"


def _as_dict(model: ListedModel, auto: str) -> dict[str, object]:
    entry = model.entry
    return {
        "name": model.name,
        "family": entry.family if entry else None,
        "num_parameters": entry.num_parameters if entry else None,
        "size_bytes": model.size_bytes,
        "licence": entry.licence if entry else None,
        "context_tokens": entry.context_tokens if entry else None,
        "fim_family": entry.fim_family if entry else "auto",
        "is_experimental": bool(entry and entry.is_experimental),
        "is_auto": model.name == auto,
        "is_downloaded": model.path is not None,
        "num_partial_bytes": model.num_partial_bytes,
        "path": str(model.path) if model.path else None,
        "source": model.source,
    }
