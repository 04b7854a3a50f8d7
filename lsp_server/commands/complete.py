"""``midline complete``: the suggestion for one place in a file, through the same pipeline as in an editor."""

import asyncio
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from engine.checkpoint.store import resolve_model
from engine.config import ServiceConfig
from engine.errors import ServiceError
from engine.paths import config_file
from lsp_server.backends.base import Backend, BackendState
from lsp_server.backends.local import LocalBackend
from lsp_server.commands.settle import settle
from lsp_server.completion.decide import refusal
from lsp_server.completion.pipeline import complete
from lsp_server.completion.request import EmptyReason, Situation, Suggestion
from lsp_server.config import MidlineConfig
from lsp_server.documents import Document, Position, PositionEncoding
from lsp_server.errors import UsageError
from lsp_server.settings import load_config

_LOAD_TIMEOUT_S = 120.0
_POLL_S = 0.05
_MAX_DIGITS = 9  # more lines and columns than any file has


def run_complete(location: str, as_json: bool, model: str | None) -> None:
    """Print the suggestion, or on stderr why there is none."""
    path, line, column = parse_location(location)
    situation = situation_at(path, line, column)
    config = load_config(config_file())
    if model is not None:
        config = replace(config, engine=replace(config.engine, model=model))
    if refusal(situation, config) is None:
        config = replace(config, engine=settle(config.engine))
        resolve_model(config.engine.model)  # its error is better than that of a service which cannot start
    suggestion = asyncio.run(_suggest(situation, config))
    if suggestion.reason is EmptyReason.SERVICE_UNAVAILABLE:
        raise ServiceError("the engine failed to answer; run: midline doctor")
    if as_json:
        typer.echo(json.dumps(_as_dict(suggestion, config.engine.model)))
    elif suggestion.text:
        typer.echo(suggestion.text)
    if suggestion.reason is not None:
        sys.stderr.write(f"midline: no suggestion ({suggestion.reason.value})\n")


def parse_location(location: str) -> tuple[Path, int, int]:
    """``FILE:LINE:COL`` from the right: the file's name may contain colons. Raises ``UsageError``."""
    parts = location.rsplit(":", 2)
    numbers = [int(part) for part in parts[1:] if part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS]
    if len(parts) != 3 or len(numbers) != 2 or not parts[0]:
        raise UsageError(f"{location!r} is not FILE:LINE:COL, for example src/app.py:12:5")
    return Path(parts[0]), numbers[0], numbers[1]


def situation_at(path: Path, line: int, column: int) -> Situation:
    """The cursor before the character at a 1-based line and column. Raises ``UsageError``."""
    document = Document(read_source(path), encoding=PositionEncoding.UTF32)
    if not 1 <= line <= document.num_lines:
        raise UsageError(f"line {line} is outside {path}; it has lines 1 to {document.num_lines}")
    num_columns = document.line_length(line - 1) + 1
    if not 1 <= column <= num_columns:
        raise UsageError(f"column {column} is outside line {line} of {path}; it has columns 1 to {num_columns}")
    prefix, suffix = document.around(Position(line - 1, column - 1))
    return Situation(prefix, suffix, path=str(path), is_explicit=True)


def read_source(path: Path) -> str:
    """A text file; bytes that are not UTF-8 are replaced. Raises ``UsageError``."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a directory; give a file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if b"\0" in data:
        raise UsageError(f"{path} is a binary file (it contains NUL bytes); give a text file")
    return data.decode("utf-8-sig", errors="replace")


async def _suggest(situation: Situation, config: MidlineConfig) -> Suggestion:
    backend = LocalBackend(ServiceConfig(config.engine, idle_exit_s=config.service.idle_exit_s))
    try:
        if refusal(situation, config) is None:
            with _loading_line(config.engine.model):
                await wait_until_ready(backend, _LOAD_TIMEOUT_S)
        return await complete(situation, config, backend)
    finally:
        await backend.aclose()


async def wait_until_ready(backend: Backend, timeout_s: float) -> None:
    """Wait for the model. Raises ``ServiceError`` when it cannot be loaded, or not in time."""
    deadline_s = time.monotonic() + timeout_s
    while (status := await backend.ensure_ready()).state is not BackendState.READY:
        if status.state in (BackendState.FAILED, BackendState.MODEL_MISSING):
            raise ServiceError(status.message)
        if time.monotonic() > deadline_s:
            raise ServiceError(f"model {status.model} was not loaded within {timeout_s:.0f} s; run: midline doctor")
        await asyncio.sleep(_POLL_S)


def _loading_line(model: str) -> AbstractContextManager[Any]:
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(f"Loading model {model} …")


def _as_dict(suggestion: Suggestion, model: str) -> dict[str, Any]:
    usage, timing = suggestion.usage, suggestion.timing
    return {
        "text": suggestion.text,
        "reason": suggestion.reason.value if suggestion.reason else None,
        "model": suggestion.model or model,
        "timing": {
            "total_ms": round(timing.total_ms, 1),
            "first_token_ms": None if timing.first_token_ms is None else round(timing.first_token_ms, 1),
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "generated_tokens": usage.generated_tokens,
        },
    }
