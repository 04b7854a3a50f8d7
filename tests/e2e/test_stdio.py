"""The real ``midline serve`` as a process, over raw JSON-RPC: alone, and with the real service and a tiny model."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from engine.service.registration import UNIX_PREFIX, Registration
from tests.support.lsp_session import LspSession, inline_params, private_folders, running_server
from tests.support.services import find_registration, stop_service
from tests.support.tiny_checkpoints import write_tiny_gguf

MAX_CPU_S = 3.0  # to answer initialize; it takes about 0.7, and the machine may be busy and slow
STATUS: dict[str, Any] = {"midline": {"status": True}}

# Prints in Python, past Python's sys.stdout, and from a child process, all in the middle of a session.
STRAY_PRINTS = """
import os, subprocess, sys
from lsp_server.cli import main
from lsp_server.session import Session
start = Session.start
def noisy_start(self):
    print("stray print")
    os.write(1, b"stray write\\n")
    subprocess.run([sys.executable, "-c", "print('stray child')"])
    start(self)
Session.start = noisy_start
main()
"""


async def test_initialize_is_quick_and_shutdown_clean(tmp_path: Path) -> None:
    async with running_server(tmp_path, "--stdio") as server:
        result = await server.session.initialize()
        cpu = psutil.Process(server.process.pid).cpu_times()
        assert cpu.user + cpu.system < MAX_CPU_S
        assert result["serverInfo"]["name"] == "midline"
        await server.session.shut_down()
        assert await server.wait() == 0
        assert await server.stderr() == ""


def test_server_imports_no_torch_and_no_http_client(tmp_path: Path) -> None:
    code = (
        "import sys; from lsp_server.commands.serve import _make_server; _make_server(None);"
        "sys.exit(', '.join({'torch', 'httpx', 'numpy', 'rich.console'} & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={**os.environ, **private_folders(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")


@pytest.mark.parametrize("ending", ["exit", "end of stdin"])
async def test_ending_without_shutdown_is_a_failure(tmp_path: Path, ending: str) -> None:
    async with running_server(tmp_path) as server:
        await server.session.initialize()
        if ending == "exit":
            server.session.notify("exit")
        else:
            assert server.process.stdin is not None
            server.process.stdin.close()
        assert await server.wait() == 1


async def test_stdout_belongs_to_lsp(tmp_path: Path) -> None:
    async with running_server(tmp_path, "--stdio", command=("-c", STRAY_PRINTS)) as server:
        await server.session.initialize()
        server.session.open("x = ")
        assert (await server.session.inline(0, 4))["result"] == {"items": []}
        await server.session.shut_down()
        assert await server.wait() == 0
        log = await server.stderr()
    assert [line for line in log.splitlines() if "stray" in line] == ["stray print", "stray write", "stray child"]


async def test_missing_model_is_told_once_and_starts_no_engine(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        await server.session.initialize()
        server.session.open("x = ")
        for _ in range(3):
            assert (await server.session.inline(0, 4))["result"] == {"items": []}
        shown = await server.session.wait_for_notification("window/showMessage")
        assert shown["message"].endswith("no model is on this machine yet; run: midline models pull")
        assert len(server.session.notifications) == 1
        assert psutil.Process(server.process.pid).children() == []
        await server.session.shut_down()
        await server.wait()
    assert not (tmp_path / "state").exists()


async def test_no_text_in_the_log_whatever_goes_wrong(tmp_path: Path) -> None:
    async with running_server(tmp_path, "--log-level", "debug") as server:
        await server.session.initialize()
        server.session.open("sesame = ")
        server.session.change("sesame", 2, at=(0, 9))
        await server.session.inline(0, 15)
        for method in ("textDocument/inlineCompletion", "midline/unknown", "workspace/executeCommand"):
            assert "error" in await server.session.request(method, {"text": "sesame", "command": "no"})
        server.session.notify("textDocument/didChange", {"contentChanges": [{"text": "sesame"}]})
        server.session.send_bytes(b'{"sesame')
        await server.session.shut_down()
        await server.wait()
        log = await server.stderr()
    assert "malformed" in log
    assert "not JSON" in log
    assert "sesame" not in log


async def test_bad_config_file_is_shown_and_the_server_works_with_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[completion]\ndebounce = 3\n")
    async with running_server(tmp_path) as server:
        await server.session.initialize(initializationOptions=STATUS)
        shown = await server.session.wait_for_notification("window/showMessage")
        assert "unknown setting completion.debounce; known here: debounce_ms" in shown["message"]
        await server.session.wait_for_notification("midline/status", state="model_missing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--log-level", "loud"), "--log-level loud is unknown; use one of error, warning, info, debug, trace"),
        (
            ("--tcp", "0.0.0.0:1"),
            "--tcp 0.0.0.0:1: only this machine may connect; use one of 127.0.0.1, ::1, localhost",
        ),
        (("--tcp", "x"), "--tcp x is not [HOST:]PORT with a port from 0 to 65535"),
    ],
)
async def test_bad_arguments_are_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    async with running_server(tmp_path, *arguments) as server:
        assert await server.wait() == 2
        assert await server.stderr() == f"midline: {message}\n"


@contextlib.asynccontextmanager
async def tcp_session(folder: Path) -> AsyncIterator[tuple[Any, LspSession]]:
    async with running_server(folder, "--tcp", "0") as server:
        assert server.process.stderr is not None
        line = await asyncio.wait_for(server.process.stderr.readline(), 20)
        match = re.fullmatch(r"midline: listening on (127\.0\.0\.1):(\d+)\n", line.decode())
        assert match
        reader, writer = await asyncio.open_connection(match[1], int(match[2]))
        session = LspSession(reader, writer)
        try:
            yield server, session
        finally:
            await session.aclose()
            writer.close()


async def test_tcp(tmp_path: Path) -> None:
    async with tcp_session(tmp_path) as (server, session):
        await session.initialize()
        session.open("x" * 300_000)  # more than a stream's buffer
        assert (await session.inline(0, 4))["result"] == {"items": []}
        await session.shut_down()
        assert await server.wait() == 0


async def test_tcp_server_ends_with_the_client_that_named_itself_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    async with tcp_session(tmp_path) as (server, session):
        await session.initialize(processId=parent.pid)
        assert server.process.returncode is None
        parent.communicate(b"\n")
        assert await server.wait() == 1


# With the real service and a tiny model.


@pytest.fixture
async def tiny_model(tmp_path: Path) -> AsyncIterator[Path]:
    yield write_tiny_gguf(tmp_path / "tiny.gguf", seed=2)  # one that talks on and on
    await stop_service(tmp_path)


@contextlib.asynccontextmanager
async def http_client(registration: Registration) -> AsyncIterator[httpx.AsyncClient]:
    is_unix = registration.address.startswith(UNIX_PREFIX)
    transport = httpx.AsyncHTTPTransport(uds=registration.address.removeprefix(UNIX_PREFIX) if is_unix else None)
    headers = {"Authorization": f"Bearer {registration.token}"}
    base_url = "http://localhost" if is_unix else registration.address
    async with httpx.AsyncClient(transport=transport, base_url=base_url, headers=headers, timeout=20) as client:
        yield client


RUNNING = "midline_requests_running"
CANCELLED = r"midline_requests_total\{.*cancel.*\}"


async def wait_for_metric(client: httpx.AsyncClient, name: str, value: float) -> None:
    """Wait until the sum over the labels that ``name``, a pattern, allows has this value."""
    found: list[str] = []
    for _ in range(400):
        text = (await client.get("/metrics")).text
        found = re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)
        if sum(map(float, found)) == value:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} is {found} and did not become {value}")


async def test_a_suggestion_end_to_end_and_cancel_down_to_the_service(tmp_path: Path, tiny_model: Path) -> None:
    settings = {"completion": {"max_line_tokens": 1500, "debounce_ms": 0}}
    options = {"midline": {"status": True, "settings": settings}}
    async with running_server(tmp_path, "--model", str(tiny_model)) as server:
        await server.session.initialize(initializationOptions=options)
        await server.session.wait_for_notification("midline/status", state="ready", timeout_s=120)
        registration = find_registration(tmp_path)
        assert registration is not None
        server.session.open("def add(a, b):\n    return a + \n")

        async with http_client(registration) as http:
            request = server.session.inline(1, 15)
            await wait_for_metric(http, RUNNING, 1)
            server.session.cancel(request)
            assert (await asyncio.wait_for(request, 20))["error"]["code"] == -32800
            await wait_for_metric(http, CANCELLED, 1)

            superseded = server.session.inline(1, 15)
            await wait_for_metric(http, RUNNING, 1)
            server.session.change("b", 2, at=(1, 15))
            assert (await asyncio.wait_for(superseded, 20))["result"] == {"items": []}
            await wait_for_metric(http, CANCELLED, 2)
            await wait_for_metric(http, RUNNING, 0)

        server.session.notify(
            "workspace/didChangeConfiguration", {"settings": {"midline": {"completion": {"max_line_tokens": 8}}}}
        )
        reply = await server.session.request("textDocument/inlineCompletion", inline_params(1, 16))
        (item,) = reply["result"]["items"]
        assert item["insertText"]
        assert item["range"] == {"start": {"line": 1, "character": 16}, "end": {"line": 1, "character": 16}}
        await server.session.shut_down()
        assert await server.wait() == 0
    assert psutil.pid_exists(registration.pid)  # it is shared, and lives on until idle
