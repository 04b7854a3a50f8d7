"""``midline doctor``: what a bug report needs, and what is wrong with it. Loads no model and starts no service."""

import asyncio
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from engine import __version__
from engine.checkpoint.store import resolve_model
from engine.config import ServiceConfig
from engine.errors import ConfigError, ModelError
from engine.machine.auto import settled
from engine.paths import config_file, models_dir, state_dir
from engine.service.client import HealthReport, ServiceState
from engine.service.launcher import ServiceLauncher
from lsp_server.commands.doctor_machine import examine_machine
from lsp_server.commands.finding import Finding
from lsp_server.config import MidlineConfig
from lsp_server.settings import load_config

_PACKAGES = ("torch", "tokenizers", "gguf", "safetensors", "huggingface_hub", "pygls", "starlette", "httpx")


def run_doctor(as_json: bool, model: str | None, is_measuring: bool) -> int:
    """Print all findings; returns 1 when there is a problem, else 0. ``is_measuring`` measures the machine anew."""
    findings = list(_examine(model, is_measuring))
    problems = [finding for finding in findings if finding.problem]
    if as_json:
        typer.echo(json.dumps(_as_dict(findings), indent=2))
    else:
        _print(findings, problems)
    return 1 if problems else 0


def _examine(model: str | None, is_measuring: bool) -> Iterator[Finding]:
    yield from _versions()
    try:
        config, problem = load_config(config_file()), ""
    except ConfigError as error:
        config, problem = MidlineConfig(), str(error)
    if model is not None:
        config = replace(config, engine=replace(config.engine, model=model))
    yield Finding("paths", "settings", f"{config_file()}{'' if config_file().exists() else ' (not there)'}", problem)
    yield _folder("models", models_dir(), "MIDLINE_CACHE_DIR")
    yield _folder("state", state_dir(), "MIDLINE_STATE_DIR")
    yield from _compute(config)
    yield from examine_machine(config.engine, is_measuring)
    config = replace(config, engine=settled(config.engine))
    yield from _model(config)
    yield from _service(config)


def _versions() -> Iterator[Finding]:
    yield Finding("versions", "midline", __version__)
    yield Finding("versions", "python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("versions", "platform", platform.platform())
    for package in _PACKAGES:
        try:
            yield Finding("versions", package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Finding("versions", package, "missing", "in Midline's folder run: pip install '.[local]'")


def _folder(name: str, folder: Path, variable: str) -> Finding:
    """A folder that must be ours to write to, tried out."""
    problem = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        problem = f"{folder} cannot be used ({error.strerror or error}); set {variable} to another folder"
    return Finding("paths", name, str(folder), problem)


def _compute(config: MidlineConfig) -> Iterator[Finding]:
    try:
        import torch  # two seconds; no other command of the command line does this
    except (ImportError, OSError) as error:  # OSError: a library of a GPU build that does not fit this machine
        yield Finding("compute", "torch", "not usable", f"{error}; in Midline's folder run: pip install '.[local]'")
        return
    is_cuda = torch.cuda.is_available()
    found = f"CUDA ({torch.cuda.get_device_name()})" if is_cuda else "cpu"
    problem = "torch finds no CUDA device" if config.engine.device == "cuda" and not is_cuda else ""
    yield Finding("compute", "device", f"{found}, setting: {config.engine.device}", problem)
    yield Finding("compute", "cpu", f"{torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} logical cores")
    is_bf16 = torch._C._has_mkldnn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    yield Finding("compute", "bfloat16 products", "native" if is_bf16 else "emulated: slower")


def _model(config: MidlineConfig) -> Iterator[Finding]:
    name = config.engine.model
    try:
        resolved = resolve_model(name)
    except ModelError as error:
        yield Finding("model", name, "not usable", str(error))
    else:
        yield Finding("model", name, str(resolved.path))


def _service(config: MidlineConfig) -> Iterator[Finding]:
    launcher = ServiceLauncher(ServiceConfig(config.engine, idle_exit_s=config.service.idle_exit_s))
    report = asyncio.run(_status(launcher))
    problem = f"last attempt: {report.message}" if report.message else ""
    yield Finding("service", "state", report.state.value, problem)
    yield Finding("service", "log", str(launcher.files.log))
    if report.state is ServiceState.READY:
        yield Finding("service", "process", f"{report.pid}, up {report.uptime_s:.0f} s")
        memory = f"{report.memory_bytes / 2**20:.0f} MiB of weights and cache"
        yield Finding("service", "model", f"{report.model}, {report.dtype} on {report.device}, {memory}")
        yield Finding("service", "kernels", report.kernels)
        is_failed = report.self_test == "failed"
        problem = "the model did not fill a known hole: is it trained for fill-in-the-middle?" if is_failed else ""
        yield Finding("service", "self-test", f"{report.self_test} (prompt format {report.family})", problem)


async def _status(launcher: ServiceLauncher) -> HealthReport:
    try:
        return await launcher.status()
    finally:
        await launcher.aclose()


def _as_dict(findings: list[Finding]) -> dict[str, Any]:
    sections: dict[str, Any] = {}
    for finding in findings:
        sections.setdefault(finding.section, {})[finding.name] = finding.data or finding.value
    return {**sections, "problems": [finding.problem for finding in findings if finding.problem]}


def _print(findings: list[Finding], problems: list[Finding]) -> None:
    console = Console(highlight=False)
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            console.print(f"\n[bold]{section}[/]")
        mark = "[red]✗[/]" if finding.problem else "[green]✓[/]"
        console.print(f"  {mark} {escape(finding.name):18} {escape(finding.value)}", soft_wrap=True)
    console.print()
    for finding in problems:
        console.print(f"[red]{escape(finding.name)}[/]: {escape(finding.problem)}", soft_wrap=True)
    console.print("[green]Nothing is wrong.[/]" if not problems else f"[bold]{len(problems)} problem(s) found.[/]")
