"""The client against the real HTTP service around an engine without a model."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from engine.errors import RequestError, ServiceError
from engine.request import CompletionRequest, Delta, FileContext, SamplingParams
from engine.service.client import ServiceClient, ServiceState
from tests.engine.service.fakes import FakeEngine, Gate, RunningService, serve, until


@pytest.fixture(params=[False, True], ids=["unix", "tcp"])
async def service(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[RunningService]:
    async with serve(tmp_path, is_tcp=request.param) as running:
        yield running


@pytest.fixture
async def client(service: RunningService) -> AsyncIterator[ServiceClient]:
    async with aclosing(service.client()) as opened:
        yield opened


async def collect(client: ServiceClient, request: CompletionRequest) -> list[Delta]:
    return [delta async for delta in client.stream(request)]


async def test_request_and_deltas_arrive_unchanged(service: RunningService, client: ServiceClient) -> None:
    sampling = SamplingParams(
        max_tokens=3,
        temperature=0.7,
        top_k=5,
        top_p=0.8,
        seed=0,
        stop=("\n", "  "),
        time_limit_ms=99.5,
        min_indent=2,
        outdented="#",
        has_labels=True,
        literals="python",
    )
    request = CompletionRequest(
        "é\r\n\t😀",
        "",
        sampling,
        (FileContext("a b.py", "x"), FileContext("", "")),
        draft="x\n",
        corpus=("y = 1\n", "z"),
        anchor=3,
        use_cache=False,
        heal=False,
        use_drafts=False,
    )
    deltas = await collect(client, request)
    assert service.engine.requests == [request]
    finished = service.engine.finished(request)
    assert deltas == [*(Delta(f"<{i}>", (i,)) for i in range(3)), Delta("", finished=finished, usage=finished.usage)]


async def test_defaults_arrive_unchanged(service: RunningService, client: ServiceClient) -> None:
    await collect(client, CompletionRequest("a"))
    assert service.engine.requests == [CompletionRequest("a")]


async def test_lone_surrogate_is_no_error(service: RunningService, client: ServiceClient) -> None:
    await collect(client, CompletionRequest("a\ud800", "\udc00b"))
    assert (service.engine.requests[0].prefix, service.engine.requests[0].suffix) == ("a�", "�b")


async def test_refusal_and_failure_have_their_types(service: RunningService, client: ServiceClient) -> None:
    with pytest.raises(RequestError, match=r"^the prompt has 9 tokens, more than 8$"):
        await collect(client, CompletionRequest("too long"))
    service.engine.failure = RuntimeError("broken")
    with pytest.raises(ServiceError, match="engine failed"):
        await collect(client, CompletionRequest("a"))
    service.engine.fails_after = 2
    with pytest.raises(ServiceError, match="engine failed"):
        await collect(client, CompletionRequest("a"))
    service.engine.failure = None
    assert len(await collect(client, CompletionRequest("a"))) == 65
    assert not client.is_broken


async def test_closing_the_stream_cancels(service: RunningService, client: ServiceClient) -> None:
    service.engine.token_s = 0.01
    stream = client.stream(CompletionRequest("a", sampling=SamplingParams(max_tokens=10**6)))
    async with aclosing(stream):
        await anext(stream)
        assert service.engine.num_running == 1
    await until(lambda: service.engine.num_running == 0, within_s=0.5)
    assert service.engine.num_ended_early == 1
    assert len(await collect(client, CompletionRequest("a", sampling=SamplingParams(max_tokens=1)))) == 2


async def test_cancelling_the_task_before_the_first_token_cancels(
    service: RunningService, client: ServiceClient
) -> None:
    service.engine.token_s = 3600.0
    task = asyncio.create_task(collect(client, CompletionRequest("a")))
    await until(lambda: service.engine.num_running == 1)
    task.cancel()
    await until(lambda: service.engine.num_running == 0, within_s=0.5)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_many_streams_at_once(service: RunningService, client: ServiceClient) -> None:
    service.engine.token_s = 0.001
    requests = [CompletionRequest(str(i), sampling=SamplingParams(max_tokens=i + 1)) for i in range(20)]
    answers = await asyncio.gather(*(collect(client, request) for request in requests))
    assert [len(answer) for answer in answers] == [i + 2 for i in range(20)]


async def test_service_that_ends_mid_answer_is_a_service_error(tmp_path: Path) -> None:
    engine = FakeEngine(token_s=0.01)
    async with serve(tmp_path, engine) as service:
        client = service.client()
        stream = client.stream(CompletionRequest("a", sampling=SamplingParams(max_tokens=10**6)))
        await anext(stream)
    async with aclosing(client), aclosing(stream):
        with pytest.raises(ServiceError):
            async for _ in stream:
                pass
        with pytest.raises(ServiceError, match="cannot be reached"):
            await client.health()
        assert client.is_broken


async def test_health_while_loading_and_ready(tmp_path: Path) -> None:
    gate = Gate(FakeEngine())
    async with serve(tmp_path, load=gate.load) as service, aclosing(service.client()) as client:
        loading = asyncio.create_task(service.runtime.load())
        report = await client.health()
        assert (report.state, report.message) == (ServiceState.LOADING, "")
        assert report.version and report.pid
        with pytest.raises(ServiceError, match="Loading model"):
            await collect(client, CompletionRequest("a"))
        gate.opened.set()
        await loading
        report = await client.health()
        assert (report.state, report.model, report.family) == (ServiceState.READY, "fake", "qwen")


async def test_closed_client_is_a_service_error(service: RunningService) -> None:
    client = service.client()
    await client.health()
    await client.aclose()
    with pytest.raises(ServiceError, match="cannot be reached"):
        await collect(client, CompletionRequest("a"))
    with pytest.raises(ServiceError, match="cannot be reached"):
        await client.health()


async def test_wrong_token(service: RunningService) -> None:
    async with aclosing(ServiceClient(service.address, "wrong")) as client:
        assert (await client.health()).pid == 0
        with pytest.raises(ServiceError, match="token"):
            await collect(client, CompletionRequest("a"))
        with pytest.raises(ServiceError, match="token"):
            await client.metrics()


async def test_metrics(service: RunningService, client: ServiceClient) -> None:
    await collect(client, CompletionRequest("a"))
    assert 'midline_computed_tokens_total{lane="interactive"} 6.0\n' in await client.metrics()
    await client.aclose()
    with pytest.raises(ServiceError, match="cannot be reached"):
        await client.metrics()


async def test_proxies_are_not_for_this_connection(
    service: RunningService, client: ServiceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await client.health()).state is ServiceState.READY


async def test_importing_client_and_launcher_is_light() -> None:
    code = (
        "import sys, engine.service.launcher; "
        "sys.exit(', '.join({'torch', 'httpx', 'starlette', 'uvicorn'} & set(sys.modules)) or 0)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
