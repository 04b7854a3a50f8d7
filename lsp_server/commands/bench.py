"""``midline bench``: measures the engine in a process of its own. Imports no torch.

All options are checked here, before a second is spent on loading; the process gets them as one JSON object.
"""

import importlib.util
import json
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

import engine
from engine.bench.settings import (
    ORDERS,
    PUBLISHED,
    QUICK_OFFLINE,
    QUICK_PEERS,
    QUICK_SERVING,
    QUICK_STEP,
    BenchSettings,
    OfflineSettings,
    PeersSettings,
    ServingSettings,
    StepSettings,
    check,
    make_folder,
    parse_counts,
)
from engine.checkpoint.store import parse_stored_name, resolve_model
from engine.config import EngineConfig
from engine.errors import ServiceError
from engine.paths import absolute_path
from lsp_server.commands.settle import settle
from lsp_server.errors import UsageError


def run_serving(
    models: list[str] | None,
    caps: str | None,
    num_requests: int | None,
    rate_per_s: float | None,
    num_typed_tokens: int | None,
    is_superseding: bool,
    seed: int,
    out: str | None,
    is_quick: bool,
) -> None:
    """Measure requests that come at their own times. Does not return; what is None keeps its default."""
    given = {
        **_requests(models, caps, num_requests, seed, out),
        "rate_per_s": rate_per_s,
        "num_typed_tokens": num_typed_tokens,
        "is_superseding": is_superseding,
    }
    _run("serving", replace(QUICK_SERVING if is_quick else ServingSettings(), **_without_none(given)))


def run_offline(
    models: list[str] | None,
    caps: str | None,
    num_requests: int | None,
    order: str,
    seed: int,
    out: str | None,
    is_quick: bool,
) -> None:
    """Measure requests that are all there at the beginning. Does not return; what is None keeps its default."""
    if order not in ORDERS:
        raise UsageError(f"--order is {order!r}; it must be one of {', '.join(ORDERS)}")
    given = {**_requests(models, caps, num_requests, seed, out), "orders": ORDERS[order]}
    _run("offline", replace(QUICK_OFFLINE if is_quick else OfflineSettings(), **_without_none(given)))


def run_step(
    models: list[str] | None,
    precision: str,
    num_cached_tokens: int | None,
    rows: str | None,
    num_rounds: int | None,
    out: str | None,
    is_quick: bool,
) -> None:
    """Measure forward passes by their rows. Does not return; what is None keeps its default."""
    given = {
        **_common(models, out),
        "precision": precision,
        "num_cached_tokens": num_cached_tokens,
        "rows": None if rows is None else parse_counts("rows", rows),
        "num_rounds": num_rounds,
    }
    _run("step", replace(QUICK_STEP if is_quick else StepSettings(), **_without_none(given)))


def run_peers(
    models: list[str] | None,
    server: str | None,
    speculation: str | None,
    data: str | None,
    precision: str,
    num_repetitions: int | None,
    seed: int,
    out: str | None,
    is_quick: bool,
) -> None:
    """Measure llama.cpp's server too, in turn. Does not return; what is None keeps its default."""
    from engine.bench.llama_server import find_server

    given = {
        **_common(models, out),
        "speculation": speculation,
        "data": None if data is None else str(absolute_path(data)),
        "precision": precision,
        "num_repetitions": num_repetitions,
        "seed": seed,
    }
    settings = replace(QUICK_PEERS if is_quick else PeersSettings(), **_without_none(given))
    check(settings)
    for model in settings.models:
        if resolve_model(_found(model)).path.suffix != ".gguf":
            raise UsageError(f"--model is {model}: llama.cpp reads .gguf files only; give one")
    _run("peers", replace(settings, server=str(find_server(server))))


def _common(models: list[str] | None, out: str | None) -> dict[str, Any]:
    if out == "":
        raise UsageError("--out is empty; it must be a folder")
    return {
        "models": tuple(models) if models else None,
        "out": None if out is None else str(absolute_path(out)),
    }


def _requests(
    models: list[str] | None, caps: str | None, num_requests: int | None, seed: int, out: str | None
) -> dict[str, Any]:
    return {
        **_common(models, out),
        "caps": None if caps is None else parse_counts("caps", caps),
        "num_requests": num_requests,
        "seed": seed,
    }


def _without_none(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _run(workload: str, settings: BenchSettings) -> None:
    check(settings)
    settings = replace(settings, models=tuple(map(_found, settings.models)))
    if importlib.util.find_spec("torch") is None:
        raise ServiceError("the engine is not installed; in Midline's folder run: pip install '.[local]'")
    if settings.out:
        make_folder(settings.out)
    command = [sys.executable, "-m", "engine.bench", workload, "--settings", json.dumps(asdict(settings))]
    code = _call(command)
    if code < 0:
        raise ServiceError(f"the benchmark was ended by signal {-code}, as when memory runs out")
    raise typer.Exit(code)


def _found(model: str) -> str:
    """The model's name as it holds in every working folder. Raises ``ModelError`` when it is not on this machine."""
    if model == PUBLISHED:
        return model
    model = settle(EngineConfig(model=model)).model
    path = resolve_model(model).path
    return model if parse_stored_name(model) else str(path)


def _call(command: list[str]) -> int:
    """Run the process to its end; returns its exit code. It ends with us, and leaves interrupts to us."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    # -m imports from the working folder: never from the user's
    child = subprocess.Popen(command, cwd=Path(engine.__file__).parents[1])
    signal.signal(signal.SIGINT, interrupt)
    try:
        return child.wait()
    finally:
        child.terminate()
        child.wait()
