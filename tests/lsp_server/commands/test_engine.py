"""``midline engine`` as a person runs it for other clients: real processes with a tiny random model."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from engine.config import EngineConfig, ServiceConfig
from engine.errors import ServiceError
from engine.service.client import ServiceState
from engine.service.launcher import ServiceLauncher
from engine.service.registration import is_process_alive
from tests.support.tiny_checkpoints import write_tiny_gguf

_MAIN = "from lsp_server.cli import main; main()"
Run = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
async def run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    """Starts ``midline engine`` in the model's folder; every process has ended when the test has."""
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"MIDLINE_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("MIDLINE_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the socket goes when the state folder's path is long
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    (tmp_path / "config.toml").write_text("[engine]\nnum_threads = 1\n")
    processes: list[asyncio.subprocess.Process] = []

    async def start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _MAIN, "engine", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=model.parent,
            env={**os.environ, **environment},
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_until(process: asyncio.subprocess.Process, pattern: str) -> tuple[str, ...]:
    """Read stderr up to a line that matches; returns its groups."""
    assert process.stderr is not None
    lines = []
    while line := (await asyncio.wait_for(process.stderr.readline(), timeout=90)).decode():
        lines.append(line)
        if found := re.search(pattern, line):
            return found.groups()
    raise AssertionError(f"no line matches {pattern!r} in:\n{''.join(lines)}")


async def test_other_clients_use_it_over_tcp(run: Run) -> None:
    process = await run("--model", "tiny.gguf", "--port", "0")
    (address,) = await read_until(process, r"listens on (http://127\.0\.0\.1:\d+)")
    (token,) = await read_until(process, r"Authorization: Bearer (\S+)")
    await read_until(process, r"ready: ")
    async with httpx.AsyncClient(base_url=address, trust_env=False) as http:
        assert (await http.get("/v1/models")).status_code == 401
        http.headers["Authorization"] = f"Bearer {token}"
        body = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 4}
        answer = await http.post("/infill", json=body, timeout=30)
        assert answer.status_code == 200 and answer.json()["tokens_evaluated"] > 0
        body = {"prompt": "def add(a, b):\n", "max_tokens": 4, "temperature": 0}
        answer = await http.post("/v1/completions", json=body, timeout=30)
        assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] > 0
        assert (await http.get("/health", headers={"Host": "evil.example"})).status_code == 403
    process.send_signal(signal.SIGINT)
    output, _ = await asyncio.wait_for(process.communicate(), timeout=10)
    assert (process.returncode, output) == (0, b"")


async def test_token_from_the_environment_and_a_socket_of_ones_own(run: Run, tmp_path: Path) -> None:
    process = await run("--model", "tiny.gguf", "--socket", str(tmp_path / "s"), MIDLINE_ENGINE_TOKEN="chosen")
    await read_until(process, f"listens on unix:{tmp_path / 's'}")
    transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "s"))
    async with httpx.AsyncClient(transport=transport, headers={"Authorization": "Bearer chosen"}) as http:
        assert (await http.get("http://localhost/v1/models")).status_code == 200


async def test_background_service_makes_way_and_editors_find_the_new_one(run: Run, model: Path) -> None:
    config = ServiceConfig(engine=EngineConfig(model=str(model), num_threads=1))
    async with aclosing(ServiceLauncher(config)) as launcher:
        former = (await (await launcher.connect()).health()).pid
        process = await run("--model", "tiny.gguf", "--port", "0")
        await read_until(process, "listens on")
        assert not is_process_alive(former)
        assert (await (await launcher.connect()).health()).pid == process.pid
        second = await run("--model", "tiny.gguf", "--port", "0")
        _, errors = await asyncio.wait_for(second.communicate(), timeout=30)
        assert second.returncode == 1
        assert re.fullmatch(rf"midline: .*runs in a terminal.*process {process.pid}.*\n", errors.decode())
        with pytest.raises(ServiceError, match="end it there"):  # an editor's restart must not end it
            await launcher.stop()
        assert (await launcher.status()).pid == process.pid
        process.terminate()
        await asyncio.wait_for(process.communicate(), timeout=10)
        assert (await launcher.status()).state is ServiceState.STOPPED


async def test_an_engine_that_cannot_start_ends_no_other(run: Run, model: Path, tmp_path: Path) -> None:
    config = ServiceConfig(engine=EngineConfig(model=str(model), num_threads=1))
    (tmp_path / "file").write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        async with aclosing(ServiceLauncher(config)) as launcher:
            former = (await (await launcher.connect()).health()).pid
            for arguments, token, message in (
                (("--port", str(busy.getsockname()[1])), "t", "choose another --port"),
                (("--socket", str(tmp_path / "file")), "t", "is not a socket"),
                (("--socket", str(tmp_path / ("x" * 120))), "t", "bytes, more than"),
                (("--port", "0"), "two words", "MIDLINE_ENGINE_TOKEN must be"),
            ):
                process = await run("--model", "tiny.gguf", *arguments, MIDLINE_ENGINE_TOKEN=token)
                _, errors = await asyncio.wait_for(process.communicate(), timeout=30)
                assert process.returncode in (1, 2)
                assert message in errors.decode()
                assert is_process_alive(former), message
            await launcher.stop()


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "message"),
    [
        (("--model", "tiny.gguf", "--port", "1", "--host", "0.0.0.0"), {}, 2, "not a loopback address"),
        (("--model", "tiny.gguf", "--port", "99999"), {}, 2, "--port 99999"),
        (("--model", "tiny.gguf", "--port", "1", "--socket", "x"), {}, 2, "exclude each other"),
        (("--model", "tiny.gguf", "--host", "::1"), {}, 2, "--host is for --port"),
        (("--model", "tiny.gguf", "--idle-exit", "nan"), {}, 2, "--idle-exit is nan"),
        (("--model", "tiny.gguf", "--idle-exit", "-1"), {}, 2, "--idle-exit is -1"),
        (("--model", "tiny.gguf", "--threads", "1000000"), {}, 2, "engine.num_threads"),
        (("--model", "tiny.gguf", "--dtype", "int3"), {}, 2, "int3"),
        (("--model", "tiny.gguf"), {"MIDLINE_ENGINE_TOKEN": "two words"}, 2, "MIDLINE_ENGINE_TOKEN"),
        (("--model", "qwen2.5-coder-1.5b"), {}, 1, "midline models pull"),
        (("--model", "no-such-model"), {}, 2, "no-such-model"),
    ],
)
async def test_errors_are_one_line(
    run: Run, arguments: tuple[str, ...], environment: dict[str, str], code: int, message: str
) -> None:
    process = await run(*arguments, **environment)
    _, errors = await asyncio.wait_for(process.communicate(), timeout=60)
    assert process.returncode == code
    assert message in errors.decode().splitlines()[-1]
    assert "Traceback" not in errors.decode()
