"""Real service processes with a tiny random model: found, started, shared, restarted, ended."""

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path

import httpx
import psutil
import pytest

import engine
from engine.config import EngineConfig, ServiceConfig
from engine.errors import RequestError, ServiceError
from engine.request import CompletionRequest, FinishReason, SamplingParams
from engine.service.client import HealthReport, ServiceState
from engine.service.launcher import Backoff, ServiceLauncher
from engine.service.registration import (
    EXIT_ALREADY_RUNNING,
    Registration,
    ServiceFiles,
    is_process_alive,
    last_log_line,
    normalised,
    read_registration,
    write_registration,
)
from tests.support.tiny_checkpoints import TinyShape, write_tiny_gguf

ENDLESS = CompletionRequest("def add(a, b):", "\n", SamplingParams(max_tokens=1900))
SHAPE = TinyShape(num_layers=4, hidden_size=128, ffn_size=256)  # with seed 0 it repeats itself to the last token
Start = Callable[..., ServiceLauncher]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", SHAPE, seed=0)


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"MIDLINE_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("MIDLINE_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the socket goes when the state folder's path is long
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path / "state"
    for path in (tmp_path / "state").glob("services/*.json"):
        registration = read_registration(path)
        if registration is not None and registration.pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(registration.pid, signal.SIGKILL)


@pytest.fixture
async def launch(model: Path, state_dir: Path) -> AsyncIterator[Start]:
    """Makes launchers; whatever they started has ended when the test has."""
    launchers: list[ServiceLauncher] = []

    def make(idle_exit_s: float = 120.0, **settings: object) -> ServiceLauncher:
        config = EngineConfig(**{"model": str(model), "num_threads": 1, "dtype": "float32", **settings})  # type: ignore[arg-type]
        launchers.append(ServiceLauncher(ServiceConfig(engine=config, idle_exit_s=idle_exit_s)))
        return launchers[-1]

    yield make
    for launcher in launchers:
        await launcher.stop()
        await launcher.aclose()
        process = launcher._process
        if process is not None and process.poll() is None:
            process.kill()
        while process is not None and process.poll() is None:
            await asyncio.sleep(0.01)


async def ready(launcher: ServiceLauncher, within_s: float = 90.0) -> HealthReport:
    deadline_s = asyncio.get_running_loop().time() + within_s
    await launcher.connect()
    while (report := await launcher.status()).state is ServiceState.LOADING:
        assert asyncio.get_running_loop().time() < deadline_s, "the model did not load in time"
        await asyncio.sleep(0.05)
    return report


async def gone(pid: int, within_s: float = 10.0) -> None:
    deadline_s = asyncio.get_running_loop().time() + within_s
    while is_process_alive(pid):
        assert asyncio.get_running_loop().time() < deadline_s, f"process {pid} did not end in time"
        await asyncio.sleep(0.01)


async def test_one_service_from_start_to_stop(launch: Start, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = launch(), launch()
    assert (await first.status()).state is ServiceState.STOPPED
    clients = await asyncio.gather(first.connect(), second.connect())  # both start a process; one survives
    reports = await asyncio.gather(*(client.health() for client in clients))
    assert reports[0].pid == reports[1].pid != os.getpid()
    assert await first.connect() is clients[0]
    losers = [item for item in (first, second) if item._process and item._process.pid != reports[0].pid]
    assert len(losers) == 1
    while (code := losers[0]._process.poll()) is None:
        await asyncio.sleep(0.01)
    assert code == EXIT_ALREADY_RUNNING
    report = await ready(first)
    assert (report.state, report.family, report.version) == (ServiceState.READY, "qwen", engine.__version__)

    for path in (first.files.registration, first.files.log, first.files.socket()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(first.files.folder.stat().st_mode) == 0o700

    request = CompletionRequest("def add(a, b):\n    ", "\n", SamplingParams(max_tokens=8))
    answer = [delta async for delta in clients[0].stream(request)]
    again = [delta async for delta in clients[1].stream(request)]
    assert "".join(delta.text for delta in answer) == "".join(delta.text for delta in again)
    finished = again[-1].finished
    assert finished is not None and finished.usage.cached_tokens > 0 and finished.timing.total_ms > 0
    with pytest.raises(RequestError, match="max_tokens"):
        await anext(clients[0].stream(CompletionRequest("a", "b", SamplingParams(max_tokens=100_000))))

    await first.stop()
    assert not is_process_alive(report.pid)
    assert not first.files.registration.exists() and not first.files.socket().exists()
    assert await second.status() == HealthReport(ServiceState.STOPPED, model=second.config.engine.model)
    assert capfd.readouterr() == ("", "")
    assert "def add" not in first.files.log.read_text()


async def test_disconnect_cancels_inside_the_engine(launch: Start) -> None:
    launcher = launch()
    await ready(launcher)
    client = await launcher.connect()
    async with aclosing(client.stream(ENDLESS)) as stream:
        await anext(stream)
        assert (await client.health()).num_running == 1
    deadline_s = asyncio.get_running_loop().time() + 1.0
    while (await client.health()).num_running:
        assert asyncio.get_running_loop().time() < deadline_s
    registration = read_registration(launcher.files.registration)
    assert registration is not None
    transport = httpx.AsyncHTTPTransport(uds=str(launcher.files.socket()))
    headers = {"Authorization": f"Bearer {registration.token}"}
    async with httpx.AsyncClient(transport=transport, headers=headers) as http:
        text = (await http.get("http://localhost/metrics")).text
    assert 'midline_requests_total{outcome="cancelled",route="/v1/completions"} 1.0' in text


async def test_killed_service_is_restarted_after_a_pause(launch: Start) -> None:
    launcher = launch()
    pid = (await (await launcher.connect()).health()).pid
    os.kill(pid, signal.SIGKILL)
    await gone(pid)
    with pytest.raises(ServiceError, match=r"killed by signal 9.*next attempt in 1 s"):
        await launcher.connect()
    assert (await launcher.status()).state is ServiceState.FAILED
    deadline_s = asyncio.get_running_loop().time() + 5.0
    while True:
        try:
            client = await launcher.connect()
            break
        except ServiceError:
            assert asyncio.get_running_loop().time() < deadline_s
            await asyncio.sleep(0.05)
    assert (await client.health()).pid != pid


async def test_service_that_had_lived_long_is_restarted_at_once(launch: Start) -> None:
    pid = (await (await launch().connect()).health()).pid
    launcher = launch()  # an editor opened just now, to which the service is older than the connection
    registration = read_registration(launcher.files.registration)
    assert registration is not None
    old = replace(registration, started_at_s=registration.started_at_s - Backoff.STABLE_S)
    write_registration(launcher.files.registration, old)
    await launcher.connect()
    os.kill(pid, signal.SIGKILL)
    await gone(pid)
    assert (await (await launcher.connect()).health()).pid != pid
    assert launcher.retry_in_s == 0


async def test_missing_model_is_told_and_can_be_tried_again(launch: Start, model: Path, tmp_path: Path) -> None:
    launcher = launch(model="qwen2.5-coder-1.5b")
    for _ in range(2):  # the second time while waiting
        with contextlib.suppress(ServiceError):  # it may have accepted a connection before it failed
            await launcher.connect()
        while (await launcher.status()).state is ServiceState.LOADING:
            await asyncio.sleep(0.01)
        report = await launcher.status()
        assert report.state is ServiceState.MODEL_MISSING
        assert "midline models pull qwen2.5-coder-1.5b" in report.message
    await gone(launcher._process.pid if launcher._process else 0)
    with pytest.raises(ServiceError, match=r"midline models pull qwen2\.5-coder-1\.5b$"):
        await launcher.connect()
    assert launcher._backoff.remaining_s > 0 and launcher.retry_in_s == 0  # trying again by itself is of no use
    await launcher.stop()
    assert launcher._backoff.remaining_s == 0


@pytest.mark.skipif(os.name == "nt", reason="has classes instead")
async def test_the_service_gives_way_to_other_programs(launch: Start) -> None:
    report = await ready(launch(niceness=5))
    assert psutil.Process(report.pid).nice() == min(19, psutil.Process().nice() + 5)


async def test_broken_model_is_told(launch: Start, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    launcher = launch(model=str(broken))
    report = await ready(launcher)
    assert report.state is ServiceState.FAILED
    assert "broken.gguf" in report.message and "\n" not in report.message
    assert launcher._process is not None
    await gone(launcher._process.pid, within_s=2.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": {"num_threads": 1_000_000}}, "engine.num_threads is 1000000; it must be 0 (automatic) to 256"),
        ({"engine": {"niceness": 20}}, "engine.niceness is 20; it must be 0 (as it was started) to 19"),
        ({"engine": {"fim_family": "nope"}}, "engine.fim_family is 'nope'; it must be one of auto, qwen"),
        ({"engine": {"max_context_tokens": 1}}, "engine.max_context_tokens is 1; it must be 256 or more"),
        ({"idle_exit_s": float("nan")}, "idle_exit_s is nan; it must be 0 or more seconds"),
        ({"engine": {"colour": 1}}, "--settings: "),
    ],
)
def test_bad_settings_are_told_before_anything_starts(
    state_dir: Path, settings: dict[str, object], message: str
) -> None:
    command = [sys.executable, "-m", "engine.service", "--settings", json.dumps(settings)]
    process = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert process.stderr.startswith(f"midline: {message}") and process.stderr.count("\n") == 1
    assert not state_dir.exists()


async def test_idle_service_exits_and_the_next_request_starts_another(launch: Start) -> None:
    launcher = launch(idle_exit_s=0.5)
    pid = (await ready(launcher)).pid
    assert pid
    await gone(pid)
    assert not launcher.files.registration.exists() and not launcher.files.socket().exists()
    assert (await (await launcher.connect()).health()).pid not in (pid, 0)


async def test_sigterm_ends_it_quickly_in_the_middle_of_an_answer(launch: Start) -> None:
    launcher = launch()
    pid = (await ready(launcher)).pid
    client = await launcher.connect()
    async with aclosing(client.stream(ENDLESS)) as stream:
        await anext(stream)
        os.kill(pid, signal.SIGTERM)
        with pytest.raises(ServiceError):
            async for delta in stream:
                if delta.finished is not None and delta.finished.reason is FinishReason.CANCELLED:
                    raise ServiceError("ended in good order")
        await gone(pid, within_s=4.0)
    assert not launcher.files.registration.exists() and not launcher.files.socket().exists()


async def test_sigterm_while_loading(launch: Start) -> None:
    launcher = launch()
    pid = (await (await launcher.connect()).health()).pid
    os.kill(pid, signal.SIGTERM)
    await gone(pid, within_s=4.0)
    assert not launcher.files.registration.exists()


async def test_older_version_makes_way_and_newer_is_used(launch: Start) -> None:
    launcher = launch()
    pid = (await (await launcher.connect()).health()).pid
    registration = read_registration(launcher.files.registration)
    assert registration is not None
    write_registration(launcher.files.registration, replace(registration, version="99.0"))
    newer = launch()
    assert (await (await newer.connect()).health()).pid == pid
    write_registration(launcher.files.registration, replace(registration, version="0.0.9"))
    older = launch()
    assert (await (await older.connect()).health()).pid != pid
    assert not is_process_alive(pid)


async def test_older_version_in_a_terminal_is_left_alone(launch: Start) -> None:
    launcher = launch()
    pid = (await (await launcher.connect()).health()).pid
    registration = read_registration(launcher.files.registration)
    assert registration is not None
    in_terminal = replace(registration, version="0.0.9", is_foreground=True)
    write_registration(launcher.files.registration, in_terminal)
    with pytest.raises(ServiceError, match=r"runs in a terminal, .*version 0\.0\.9\); end it there"):
        await launch().connect()
    assert is_process_alive(pid)
    write_registration(launcher.files.registration, registration)


@pytest.mark.parametrize("is_own_pid", [False, True])
async def test_stale_registration(launch: Start, is_own_pid: bool) -> None:
    launcher = launch()
    launcher.files.create_folder()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()
    stale = Registration(
        pid=os.getpid() if is_own_pid else process.pid,
        address=f"unix:{launcher.files.socket()}",
        token="t",
        model="m",
        version="0.0.1",
        started_at_s=0.0,
    )
    write_registration(launcher.files.registration, stale)
    report = await launcher.status()
    assert report.state is (ServiceState.FAILED if is_own_pid else ServiceState.STOPPED)
    assert (await (await launcher.connect()).health()).pid not in (os.getpid(), process.pid)


async def test_cancelled_caller_does_not_cancel_the_start(launch: Start) -> None:
    launcher = launch()
    caller = asyncio.create_task(launcher.connect())
    while launcher._process is None:
        await asyncio.sleep(0.005)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    pid = launcher._process.pid
    assert (await (await launcher.connect()).health()).pid == pid


def test_backoff() -> None:
    now_s = 100.0
    backoff = Backoff(lambda: now_s)
    delays = []
    for _ in range(8):
        backoff.record_failure("broken", lifetime_s=1.0)
        delays.append(backoff.remaining_s)
    assert delays == [1, 2, 4, 8, 16, 30, 30, 30]
    now_s += 29
    assert (backoff.remaining_s, backoff.message) == (1, "broken")
    backoff.record_failure("broken", lifetime_s=Backoff.STABLE_S)  # after a stable run it is started at once
    assert (backoff.remaining_s, backoff.message) == (0, "")
    backoff.record_failure("broken", lifetime_s=1.0)
    assert backoff.remaining_s == 1
    backoff.forget()
    assert (backoff.remaining_s, backoff.message) == (0, "")


def test_key_names_model_and_settings(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = ServiceFiles.for_engine(normalised(EngineConfig(model="./m.gguf")))
    same = ServiceFiles.for_engine(normalised(EngineConfig(model=str(tmp_path / "m.gguf"))))
    other = ServiceFiles.for_engine(normalised(EngineConfig(model="./m.gguf", dtype="float32")))
    assert one == same != other
    assert one.key.startswith("m.gguf-")
    assert normalised(EngineConfig(model="hf:org/repo")).model == "hf:org/repo"
    assert normalised(EngineConfig(draft_model="./d.gguf")).draft_model == str((tmp_path / "d.gguf").resolve())
    assert normalised(EngineConfig()) == EngineConfig()
    assert normalised(EngineConfig()) == EngineConfig()


def test_long_state_folder_gets_a_short_private_socket_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDLINE_STATE_DIR", str(tmp_path / ("x" * 100)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = ServiceFiles.for_engine(EngineConfig())
    assert len(os.fsencode(files.socket())) <= 100
    assert files.socket() != ServiceFiles.for_engine(EngineConfig(dtype="float32")).socket()
    assert stat.S_IMODE(files.socket().parent.stat().st_mode) == 0o700
    (tmp_path / "elsewhere").mkdir()
    folder = files.socket().parent
    folder.rmdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ServiceError, match="not a folder of yours"):
        files.socket()


def test_unreadable_registration_is_none(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert read_registration(path) is None
    for content in ("", "{", "[]", "3", '{"pid": 1}', json.dumps({"pid": 1, "unknown": 2})):
        path.write_text(content)
        assert read_registration(path) is None
    registration = Registration(1, "unix:/x", "t", "m", "1", 2.0)
    write_registration(path, registration)
    assert json.loads(path.read_text()) == asdict(registration)
    assert read_registration(path) == registration
    assert list(tmp_path.iterdir()) == [path]


def test_last_log_line_of_a_crash_names_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_log_line(log) == ""
    log.write_text("\n")
    assert last_log_line(log) == ""
    log.write_text("one\ntwo \n\n")
    assert last_log_line(log) == "two"
    code = "import faulthandler; faulthandler.enable(); faulthandler._sigsegv()"
    with log.open("ab") as file:
        subprocess.run([sys.executable, "-c", code], stderr=file, check=False)
        modules = ", ".join(f"torch.part{number}" for number in range(1000))  # longer than a page
        file.write(f"\nExtension modules: {modules} (total: 1000)\n".encode())
    assert last_log_line(log) == "Fatal Python error: Segmentation fault"
    with log.open("ab") as file:
        file.write(b"INFO another engine listens\n")
    assert last_log_line(log) == "INFO another engine listens"
