"""Settles the model name ``auto`` for a command, with a line that says so while the machine is measured."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console
from rich.markup import escape

from engine.config import AUTO_MODEL, EngineConfig
from engine.machine.auto import measured_machine, model_to_pull, settled


def settle(config: EngineConfig) -> EngineConfig:
    """The same settings with a real model in place of ``auto``; unchanged when none is on this machine."""
    with measuring_line(config.model == AUTO_MODEL):
        return settled(config)


def name_to_pull(config: EngineConfig) -> str:
    """What to download for ``auto``: says on stderr what was chosen and why."""
    console = Console(stderr=True, highlight=False)
    with measuring_line():
        verdict = model_to_pull(config, measured_machine)
    why = f"the smallest: {verdict.reason}" if verdict.reason else "the best that is quick enough here"
    if verdict.predicted_ms is not None:
        why += f", {verdict.predicted_ms:.0f} ms predicted for a suggestion"
    console.print(f"auto: {escape(verdict.entry.name)} ({why})", soft_wrap=True)
    return verdict.entry.name


def measuring_line(is_shown: bool = True) -> AbstractContextManager[Any]:
    """A spinner on a terminal."""
    console = Console(stderr=True)
    is_seen = is_shown and console.is_terminal
    return console.status("Measuring this machine (once) …") if is_seen else nullcontext()
