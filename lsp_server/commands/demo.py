"""``midline demo``: downloads the model if needed, types into an example, and shows each suggestion as it comes."""

import asyncio
import statistics
import time
from dataclasses import replace

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from engine.checkpoint.store import pull_model, resolve_model
from engine.config import AUTO_MODEL
from engine.errors import ModelNotDownloadedError, ServiceError
from engine.paths import config_file
from lsp_server.commands.models import download_progress
from lsp_server.commands.settle import name_to_pull, settle
from lsp_server.demo.editor import DemoEditor, Ghost
from lsp_server.demo.script import EXAMPLE_NAME, Scene, load_script
from lsp_server.editor import run_beside
from lsp_server.errors import UsageError
from lsp_server.settings import load_config

_KEY_INTERVAL_S = 0.08
_READ_PAUSE_S = 0.8
_LOAD_TIMEOUT_S = 180.0


def run_demo(model: str | None, is_fast: bool) -> None:
    """Run the demo; a terminal sees it being typed, a pipe gets the finished lines."""
    console = Console(highlight=False)
    config = load_config(config_file())
    if not config.enabled:
        raise UsageError(f"completions are switched off by 'enabled = false' in {config_file()}; change that first")
    engine = config.engine if model is None else replace(config.engine, model=model)
    name = settle(engine).model
    if name == AUTO_MODEL:
        name = name_to_pull(engine)
    try:
        resolve_model(name)
    except ModelNotDownloadedError:
        console.print(f"Downloading [bold]{escape(name)}[/] (once) …", soft_wrap=True)
        with download_progress(console) as progress:
            pull_model(name, progress)
    asyncio.run(_watch_and_play(console, name, is_fast or not console.is_terminal))


async def _watch_and_play(console: Console, model: str, is_fast: bool) -> None:
    """Play until the end, or until the language server ends, whichever comes first."""
    lines, scenes = load_script()
    editor = DemoEditor(EXAMPLE_NAME, lines)
    await run_beside(editor, asyncio.create_task(_play(console, editor, scenes, model, is_fast)))


async def _play(console: Console, editor: DemoEditor, scenes: list[Scene], model: str, is_fast: bool) -> None:
    with console.status(f"Starting the language server and loading {escape(model)} …"):
        started = time.monotonic()
        await editor.start(model)
        editor.open_example()
        await editor.wait_until_ready(_LOAD_TIMEOUT_S)
    console.print(f"[bold]{escape(model)}[/] is ready after {time.monotonic() - started:.1f} s.", soft_wrap=True)
    console.print(
        f"Typing into [bold]{EXAMPLE_NAME}[/]; what Midline suggests is shown [italic cyan]like this[/].\n",
        soft_wrap=True,
    )
    latencies, added = [], 0
    for scene in scenes:
        first_line = scene.line + added
        _print_line(console, first_line - 1, editor.lines[first_line - 1])
        ghost = await _play_scene(console, editor, replace(scene, line=first_line), is_fast)
        latencies += [ghost.latency_ms] if ghost.text else []
        added += ghost.text.count("\n")
    if not latencies:
        raise ServiceError("the model suggested nothing in the whole example; run: midline doctor")
    console.print(
        f"[bold]{len(latencies)} of {len(scenes)}[/] places got a suggestion, in the median"
        f" [bold]{statistics.median(latencies):.0f} ms[/] after the last key (waiting for a pause in typing included).",
        soft_wrap=True,
    )
    hint = "Next: open your editor; the README's section “Editors” has the few lines it needs."
    console.print(hint, style="dim", soft_wrap=True)


async def _play_scene(console: Console, editor: DemoEditor, scene: Scene, is_fast: bool) -> Ghost:
    """Type one text key by key, wait for the suggestion, and accept it."""
    line, column = scene.line, len(scene.indentation)
    editor.set_line(line, scene.indentation)
    asking: list[asyncio.Task[Ghost]] = []
    with Live(console=console, auto_refresh=False, transient=False) as live:
        try:
            for key in scene.typed:
                line, column = editor.insert(line, column, key)
                asking.append(asyncio.create_task(editor.suggestion(line, column)))
                live.update(_render(line, editor.lines[line], "", None), refresh=True)
                await asyncio.sleep(0 if is_fast else _KEY_INTERVAL_S)
            *_, ghost = await asyncio.gather(*asking)  # the server answers older ones, with nothing, at the next key
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)  # all of them fail if the server has ended
        live.update(_render(line, editor.lines[line], ghost.text, ghost.latency_ms), refresh=True)
        await asyncio.sleep(0 if is_fast else _READ_PAUSE_S)
    console.print()
    if ghost.text:
        editor.insert(line, column, ghost.text)
    return ghost


def _print_line(console: Console, number: int, text: str) -> None:
    console.print(_numbered(number, Text(text, style="dim")), no_wrap=True, overflow="ellipsis")


def _numbered(number: int, text: Text) -> Text:
    return Text.assemble((f"{number + 1:4d} │ ", "dim"), text)


def _render(number: int, typed: str, ghost: str, latency_ms: float | None) -> Text:
    """The cursor's line with its ghost text; further lines of the ghost below it."""
    first, *more = ghost.split("\n")
    shown = _numbered(number, Text.assemble((typed, "bold"), (first, "italic cyan")))
    shown.no_wrap, shown.overflow = True, "ellipsis"
    for offset, line in enumerate(more, 1):
        shown.append("\n")
        shown.append_text(_numbered(number + offset, Text(line, style="italic cyan")))
    if latency_ms is not None:
        note = f"{latency_ms:.0f} ms" if ghost else f"no suggestion ({latency_ms:.0f} ms)"
        shown.append(f"\n     └ {note}", style="green" if ghost else "yellow")
    return shown
