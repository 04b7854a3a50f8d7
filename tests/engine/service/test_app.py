"""Health, access, queue limit, metrics, and that going away cancels."""

import asyncio
import json
import os
import stat
from contextlib import aclosing
from pathlib import Path

import pytest

from engine.config import EngineConfig, ServiceConfig
from engine.errors import ConfigError, ModelNotDownloadedError, ServiceError
from engine.service.listener import listen_tcp, listen_unix
from tests.engine.service.fakes import AUTHORIZED, TOKEN, FakeEngine, Gate, serve, until

ROUTES = [("POST", "/v1/completions"), ("POST", "/infill"), ("GET", "/v1/models"), ("GET", "/metrics")]


async def test_health_from_loading_to_ready(tmp_path: Path) -> None:
    gate = Gate(FakeEngine())
    async with serve(tmp_path, load=gate.load) as service, service.http() as http:
        loading = asyncio.create_task(service.runtime.load())
        response = await http.get("/health")
        assert response.status_code == 503
        error = response.json()["error"]
        assert (error["code"], error["message"], error["type"]) == (503, "Loading model", "unavailable_error")
        assert response.json()["pid"] == os.getpid()
        refused = await http.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503 and refused.json()["error"]["type"] == "unavailable_error"
        gate.opened.set()
        await loading
        response = await http.get("/health")
    report = response.json()
    assert response.status_code == 200 and report["status"] == "ok"
    assert (report["model"], report["family"], report["context_tokens"]) == ("fake", "qwen", 1024)
    assert (report["num_running"], report["num_waiting"], report["memory_bytes"]) == (0, 0, 123)
    assert report["uptime_s"] >= 0 and report["self_test"] == "skipped"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModelNotDownloadedError("model x is not here"), "model x is not here"),
        (MemoryError("no room\nsecond line"), "loading m failed: MemoryError: no room"),
    ],
)
async def test_failed_load(tmp_path: Path, error: Exception, message: str) -> None:
    gate = Gate(FakeEngine(), error)
    gate.opened.set()
    config = ServiceConfig(engine=EngineConfig(model="m"))
    async with serve(tmp_path, config=config, load=gate.load) as service:
        await service.runtime.load()
        async with service.http() as http:
            response = await http.get("/health")
            refused = await http.post("/v1/completions", json={"prompt": "a"})
        async with service.http(token=None) as http:
            unknown = await http.get("/health")
    assert response.status_code == refused.status_code == unknown.status_code == 500
    assert response.json()["error"]["message"] == refused.json()["error"]["message"] == message
    assert "m" not in unknown.json() and message not in unknown.text


async def test_health_without_token_tells_only_the_state(tmp_path: Path) -> None:
    async with serve(tmp_path) as service, service.http(token=None) as http:
        response = await http.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("is_tcp", [False, True])
async def test_everything_else_needs_the_token(tmp_path: Path, is_tcp: bool) -> None:
    async with serve(tmp_path, is_tcp=is_tcp) as service, service.http(token=None) as http:
        for method, path in [*ROUTES, ("POST", "/shutdown"), ("GET", "/unknown"), ("GET", "/health/")]:
            for value in (None, b"Bearer wrong", b"Bearer", b"Basic " + TOKEN.encode(), "Bearer ä".encode()):
                headers = {b"Authorization": value} if value else {}
                response = await http.request(method, path, headers=headers, content=b"{}")
                assert response.status_code == 401, (method, path, value)
                assert response.json()["error"]["type"] == "authentication_error"
        assert not service.engine.requests and not service.exit_requested.is_set()


async def test_tcp_answers_only_loopback_names(tmp_path: Path) -> None:
    async with serve(tmp_path, is_tcp=True) as service, service.http() as http:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil:1", ""):
            assert (await http.get("/health", headers={"Host": host})).status_code == 403, host
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8012", "[::1]:8012", "[::1]"):
            assert (await http.get("/v1/models", headers={"Host": host})).status_code == 200, host


async def test_models_and_unknown_routes(tmp_path: Path) -> None:
    async with serve(tmp_path) as service, service.http() as http:
        models = (await http.get("/v1/models")).json()
        assert models["object"] == "list"
        assert [(entry["id"], entry["object"]) for entry in models["data"]] == [("fake", "model")]
        missing, wrong = await http.get("/v2"), await http.get("/infill")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert missing.json()["error"]["code"] == 404 and wrong.json()["error"]["code"] == 405


async def test_shutdown_is_asked_for(tmp_path: Path) -> None:
    async with serve(tmp_path) as service:
        async with aclosing(service.client()) as client:
            await client.shutdown()
        assert service.exit_requested.is_set()


async def test_full_queue_refuses(tmp_path: Path) -> None:
    engine = FakeEngine(num_waiting=2)
    async with serve(tmp_path, engine, ServiceConfig(max_queued_requests=2)) as service, service.http() as http:
        response = await http.post("/infill", json={"input_prefix": "a", "input_suffix": ""})
        assert response.status_code == 503 and int(response.headers["Retry-After"]) >= 1
        assert not engine.requests
        engine.num_waiting = 1
        response = await http.post("/infill", json={"input_prefix": "a", "input_suffix": ""})
        assert response.status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/infill"])
@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("token_s", [0.01, 3600.0])
async def test_going_away_cancels(tmp_path: Path, path: str, is_streaming: bool, token_s: float) -> None:
    engine = FakeEngine(token_s=token_s)  # an hour: the client goes before the first token
    body = {"prompt": "a", "input_prefix": "a", "input_suffix": "", "max_tokens": 10**6, "n_predict": 10**6}
    content = json.dumps({**body, "stream": is_streaming}).encode()
    async with serve(tmp_path, engine) as service:
        _, writer = await asyncio.open_unix_connection(service.address.removeprefix("unix:"))
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {AUTHORIZED['Authorization']}\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        await until(lambda: engine.num_running == 1)
        writer.close()
        await until(lambda: engine.num_running == 0, within_s=1.0)
        assert engine.num_ended_early == 1
        assert await service.metric(f'midline_requests_total{{outcome="cancelled",route="{path}"}}') == 1


async def test_metrics(tmp_path: Path) -> None:
    async with serve(tmp_path) as service:
        async with service.http() as http:
            await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 5})
            await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "lane": "bulk"})
            await http.post("/infill", json={"input_prefix": "a", "input_suffix": "", "n_predict": 2})
            await http.post("/infill", json={})
        assert await service.metric('midline_requests_total{outcome="finished",route="/v1/completions"}') == 2
        assert await service.metric('midline_requests_total{outcome="finished",route="/infill"}') == 1
        assert await service.metric('midline_requests_total{outcome="refused",route="/infill"}') == 1
        for lane, num_generated, num_requests in (("interactive", 7, 2), ("bulk", 1, 1)):
            label = f'{{lane="{lane}"}}'
            assert await service.metric(f"midline_generated_tokens_total{label}") == num_generated
            assert await service.metric(f"midline_prompt_tokens_total{label}") == 10 * num_requests
            assert await service.metric(f"midline_cached_tokens_total{label}") == 4 * num_requests
            assert await service.metric(f"midline_computed_tokens_total{label}") == 6 * num_requests
            assert await service.metric(f"midline_first_token_seconds_count{label}") == num_requests
        assert await service.metric('midline_completions_total{lane="bulk",reason="length"}') == 1
        assert await service.metric("midline_request_seconds_count") == 4
        assert await service.metric("midline_kv_blocks_used") == 3
        assert await service.metric("midline_kv_blocks") == 10
        assert await service.metric("midline_requests_running") == 0
        assert await service.metric("process_resident_memory_bytes") > 1e6


async def test_idle_counts_use_but_not_health(tmp_path: Path) -> None:
    engine = FakeEngine(token_s=0.05)
    async with serve(tmp_path, engine, ServiceConfig(idle_exit_s=0.4)) as service, service.http() as http:
        idle = asyncio.create_task(service.runtime.wait_until_idle())
        await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 12})  # 0.6 s
        assert not idle.done()
        for _ in range(100):
            await http.get("/health")
            if idle.done():
                break
            await asyncio.sleep(0.02)
        assert idle.done()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_only_loopback_is_bound(host: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1"):
        listen_tcp(host, 0)


def test_port_in_use_is_one_line() -> None:
    with listen_tcp("localhost", 0) as first, pytest.raises(ServiceError, match="--port"):
        listen_tcp("127.0.0.1", first.getsockname()[1])


def test_unix_socket_is_private_and_replaces_a_stale_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    listen_unix(path).close()
    assert path.exists()
    with listen_unix(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(ServiceError, match="another process"):
            listen_unix(path)


def test_unix_socket_never_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="not a socket"):
        listen_unix(path)
    assert path.read_text() == "mine"
    with pytest.raises(ConfigError, match="bytes"):
        listen_unix(tmp_path / ("x" * 120))
