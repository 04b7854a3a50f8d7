"""The local backend with the real service and a tiny model."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from engine.config import EngineConfig, ServiceConfig
from engine.errors import ServiceError
from engine.machine.record import machine_key, read_machine
from engine.request import CompletionRequest, SamplingParams
from engine.service.launcher import Backoff, ServiceLauncher
from lsp_server.backends.base import BackendState, BackendStatus
from lsp_server.backends.local import LocalBackend
from tests.support.lsp_session import private_folders, until
from tests.support.machine import FAST, LARGE, SMALL, keep_machine, keep_model
from tests.support.services import find_registration, stop_service
from tests.support.tiny_checkpoints import write_tiny_gguf


@pytest.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    for name, value in private_folders(tmp_path).items():
        monkeypatch.setenv(name, value)
    yield tmp_path
    await stop_service(tmp_path)


async def until_ready(backend: LocalBackend) -> None:
    deadline_s = time.monotonic() + 120
    while (await backend.ensure_ready()).state is not BackendState.READY:
        assert time.monotonic() < deadline_s, backend.status
        await asyncio.sleep(0.02)


async def generate(backend: LocalBackend) -> str:
    request = CompletionRequest("def f():\n    return ", "\n", SamplingParams(max_tokens=4))
    return "".join([delta.text async for delta in backend.stream(request)])


async def test_follows_the_service_through_start_death_and_restart(folder: Path) -> None:
    seen: list[BackendStatus] = []
    model = str(write_tiny_gguf(folder / "tiny.gguf", seed=2))
    backend = LocalBackend(ServiceConfig(EngineConfig(model=model)), seen.append)
    assert backend.status == BackendStatus(BackendState.STOPPED, model)
    with pytest.raises(ServiceError, match="not ready"):
        await generate(backend)

    request = asyncio.create_task(backend.ensure_ready())
    await asyncio.sleep(0)
    request.cancel()  # the start goes on
    await until(lambda: backend.status.state is BackendState.READY, timeout_s=120)
    assert [status.state.value for status in seen] == ["starting", "loading", "ready"]
    text = await generate(backend)
    assert text

    first = find_registration(folder)
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(first.pid))
    await until_ready(backend)
    second = find_registration(folder)
    assert second is not None
    assert second.pid != first.pid
    assert await generate(backend) == text

    await backend.restart()
    await until_ready(backend)
    third = find_registration(folder)
    assert third is not None
    assert third.pid != second.pid
    await backend.aclose()


async def test_killed_engine_comes_back_without_another_request(folder: Path) -> None:
    seen: list[BackendStatus] = []
    model = str(write_tiny_gguf(folder / "tiny.gguf", seed=2))
    backend = LocalBackend(ServiceConfig(EngineConfig(model=model)), seen.append)
    await until_ready(backend)
    first = find_registration(folder)
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(first.pid))
    await backend.ensure_ready()  # the one request that finds it dead
    await until(lambda: backend.status.state is BackendState.LOADING, timeout_s=30)
    second = find_registration(folder)
    assert second is not None and second.pid != first.pid
    os.kill(second.pid, signal.SIGKILL)
    await until(lambda: backend.status.state is BackendState.STARTING, timeout_s=30)
    await until(lambda: backend.status.state is BackendState.READY, timeout_s=120)
    assert BackendState.FAILED not in {status.state for status in seen}
    await backend.aclose()


async def test_engine_that_always_crashes_is_a_failure_after_a_few_attempts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[BackendStatus] = []
    num_starts = 0

    def crash(launcher: ServiceLauncher) -> "subprocess.Popen[bytes]":
        nonlocal num_starts
        num_starts += 1
        launcher._process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
        launcher._process.wait()
        return launcher._process

    monkeypatch.setattr(ServiceLauncher, "_spawn", crash)
    monkeypatch.setattr(Backoff, "MAX_DELAY_S", 0.05)
    model = str(write_tiny_gguf(folder / "tiny.gguf", seed=2))
    backend = LocalBackend(ServiceConfig(EngineConfig(model=model)), seen.append)
    await backend.ensure_ready()
    await until(lambda: backend.status.state is BackendState.FAILED, timeout_s=30)
    assert num_starts == 4
    assert {status.state for status in seen[:-1]} == {BackendState.STARTING}
    assert "ended unexpectedly" in backend.status.message
    await backend.aclose()


async def test_auto_finds_the_service_of_the_model_it_stands_for(folder: Path) -> None:
    seen: list[BackendStatus] = []
    config = ServiceConfig(EngineConfig())
    backend = LocalBackend(config, seen.append)
    assert backend.status == BackendStatus(BackendState.STOPPED, "auto")
    await backend.ensure_ready()
    await until(lambda: backend.status.state is BackendState.MODEL_MISSING)
    assert backend.status.message == "no model is on this machine yet; run: midline models pull"
    await backend.restart()  # of nothing
    assert not (folder / "state").exists()

    keep_model(SMALL, write_tiny_gguf(folder / "tiny.gguf", seed=2).read_bytes())
    await until_ready(backend)
    assert backend.status.model == SMALL and await generate(backend)
    registration = find_registration(folder)
    assert registration is not None
    by_name = LocalBackend(ServiceConfig(EngineConfig(model=SMALL)))
    await until_ready(by_name)
    assert find_registration(folder) == registration

    def is_timed() -> bool:
        machine = read_machine(machine_key(EngineConfig()))
        return machine is not None and len(machine.suggestion_ms) == 1

    await until(is_timed, timeout_s=60)  # by the service, for the doctor
    keep_model(LARGE, write_tiny_gguf(folder / "tiny.gguf", seed=3).read_bytes())
    keep_machine(FAST)
    assert backend.status.model == SMALL  # as long as it lives
    await backend.restart()
    await until_ready(backend)
    assert backend.status.model == LARGE
    await by_name.aclose()
    await backend.aclose()


@pytest.mark.parametrize(
    ("model", "state", "message"),
    [
        ("qwen2.5-coder-0.5b", BackendState.MODEL_MISSING, "run: midline models pull qwen2.5-coder-0.5b"),
        ("qwen9", BackendState.FAILED, "unknown model 'qwen9'"),
        ("none.gguf", BackendState.FAILED, "no such model file: none.gguf"),
    ],
)
async def test_model_that_cannot_be_used_is_a_status_and_starts_nothing(
    folder: Path, model: str, state: BackendState, message: str
) -> None:
    backend = LocalBackend(ServiceConfig(EngineConfig(model=model)))
    status = await backend.ensure_ready()
    assert status.state is state
    assert message in status.message
    assert not (folder / "state").exists()
    await backend.aclose()


async def test_model_that_does_not_load_is_a_failure_with_its_reason(folder: Path) -> None:
    (folder / "broken.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    backend = LocalBackend(ServiceConfig(EngineConfig(model=str(folder / "broken.gguf"))))
    deadline_s = time.monotonic() + 120
    while (status := await backend.ensure_ready()).state is not BackendState.FAILED:
        assert time.monotonic() < deadline_s, status
        await asyncio.sleep(0.05)
    assert "broken.gguf" in status.message
    former = find_registration(folder)
    assert former is not None
    await until(lambda: not psutil.pid_exists(former.pid))
    assert await backend.ensure_ready() == status  # nothing is started by itself, nor at every keystroke
    assert find_registration(folder) == former
    await backend.aclose()
