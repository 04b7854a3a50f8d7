import asyncio
import time

import pytest

from engine.errors import RequestError, ServiceError
from lsp_server.backends.base import BackendState
from lsp_server.completion.pipeline import Track, complete
from lsp_server.completion.request import EmptyReason
from lsp_server.config import CompletionConfig, ContextConfig, MidlineConfig
from tests.support.cursor import situation
from tests.support.lsp_session import NO_DEBOUNCE, until
from tests.support.scripted_backend import ScriptedBackend


async def test_suggestion_carries_model_usage_and_timing() -> None:
    suggestion = await complete(situation("x = ║"), NO_DEBOUNCE, ScriptedBackend(("1 +", " 2")))
    assert (suggestion.text, suggestion.reason, suggestion.model) == ("1 + 2", None, "scripted")
    assert (suggestion.usage.prompt_tokens, suggestion.usage.cached_tokens) == (10, 4)
    assert suggestion.timing.first_token_ms is not None
    assert 0 <= suggestion.timing.first_token_ms <= suggestion.timing.total_ms


async def test_single_line_request() -> None:
    backend = ScriptedBackend()
    await complete(situation("a\nx = ║\nb\n"), NO_DEBOUNCE, backend)
    (request,) = backend.requests
    assert (request.prefix, request.suffix) == ("a\nx = ", "\nb\n")
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.stop, sampling.temperature) == (32, ("\n",), 0.0)
    assert sampling.time_limit_ms is None


async def test_block_request() -> None:
    backend = ScriptedBackend()
    await complete(situation("def f():\n    ║\n"), NO_DEBOUNCE, backend)
    sampling = backend.requests[0].sampling
    assert (sampling.max_tokens, sampling.stop, sampling.min_indent, sampling.time_limit_ms) == (96, (), 4, 2500)


@pytest.mark.parametrize(
    ("drawn", "suffix"),
    [("f(║)\nb", "\nb"), ("f(║)", ""), ("f(║):\nb", "\nb"), ("x║", ""), ("x = ║ + y\nb", " + y\nb")],
)
async def test_closers_after_the_cursor_are_no_suffix(drawn: str, suffix: str) -> None:
    backend = ScriptedBackend()
    await complete(situation(drawn, is_explicit=True), NO_DEBOUNCE, backend)
    assert backend.requests[0].suffix == suffix


async def test_context_is_limited() -> None:
    backend = ScriptedBackend()
    config = MidlineConfig(context=ContextConfig(max_prefix_chars=50, max_suffix_chars=20))
    drawn = "line\n" * 100 + "x = ║\n" + "more\n" * 100
    await complete(situation(drawn, is_explicit=True), config, backend)
    request = backend.requests[0]
    assert request.prefix.startswith("line\n")
    assert len(request.prefix) <= 50
    assert request.suffix is not None
    assert len(request.suffix) <= 20


async def test_refused_situation_touches_no_backend() -> None:
    backend = ScriptedBackend()
    suggestion = await complete(situation("x = ║"), MidlineConfig(enabled=False), backend)
    assert suggestion.reason is EmptyReason.DISABLED
    assert backend.num_starts == 0


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (BackendState.MODEL_MISSING, EmptyReason.MODEL_MISSING),
        (BackendState.LOADING, EmptyReason.MODEL_LOADING),
        (BackendState.STARTING, EmptyReason.MODEL_LOADING),
        (BackendState.FAILED, EmptyReason.SERVICE_UNAVAILABLE),
        (BackendState.STOPPED, EmptyReason.SERVICE_UNAVAILABLE),
    ],
)
async def test_backend_that_is_not_ready_is_a_reason(state: BackendState, reason: EmptyReason) -> None:
    backend = ScriptedBackend(state=state)
    assert (await complete(situation("x = ║"), NO_DEBOUNCE, backend, budget_ms=1000)).reason is reason
    assert backend.requests == []


async def test_a_loading_model_is_waited_for_and_then_answers() -> None:
    backend = ScriptedBackend(state=BackendState.STARTING)
    asking = asyncio.create_task(complete(situation("x = ║"), NO_DEBOUNCE, backend))
    for state in (BackendState.LOADING, BackendState.READY):
        num_starts = backend.num_starts
        while backend.num_starts < num_starts + 2:
            await asyncio.sleep(0.01)
        assert backend.requests == []
        backend.state = state
    assert (await asyncio.wait_for(asking, 10)).text == "text"


async def test_a_model_that_fails_while_it_is_waited_for_is_a_reason() -> None:
    backend = ScriptedBackend(state=BackendState.LOADING)
    asking = asyncio.create_task(complete(situation("x = ║"), NO_DEBOUNCE, backend))
    while not backend.num_starts:
        await asyncio.sleep(0)
    backend.state = BackendState.FAILED
    assert (await asyncio.wait_for(asking, 10)).reason is EmptyReason.SERVICE_UNAVAILABLE


@pytest.mark.parametrize("error", [ServiceError("gone"), RequestError("too long")])
async def test_error_of_the_backend_is_a_reason(error: Exception) -> None:
    suggestion = await complete(situation("x = ║"), NO_DEBOUNCE, ScriptedBackend(error=error))
    assert suggestion.reason is EmptyReason.SERVICE_UNAVAILABLE


async def test_debounce_delays_automatic_requests_only() -> None:
    backend = ScriptedBackend()
    config = MidlineConfig(completion=CompletionConfig(debounce_ms=3_600_000))
    track = Track()
    track.rhythm.answered(7_200_000)  # a slow engine
    await asyncio.wait_for(complete(situation("x = ║", is_explicit=True), config, backend, track=track), 10)
    waiting = asyncio.create_task(complete(situation("x = 1║"), config, backend, track=track))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 10)
    assert len(backend.requests) == 1


async def test_a_prompt_that_must_be_computed_anew_is_begun_at_once() -> None:
    backend, track = ScriptedBackend(), Track()
    config = MidlineConfig(completion=CompletionConfig(debounce_ms=3_600_000))
    track.rhythm.answered(7_200_000)
    await asyncio.wait_for(complete(situation("x = ║"), config, backend, track=track), 10)
    await asyncio.wait_for(complete(situation("x = 1\n\n\ny = ║\nz\n"), config, backend, track=track), 10)
    assert len(backend.requests) == 2


async def test_answers_from_a_cached_prompt_are_measured() -> None:
    track = Track()
    assert track.rhythm.answer_ms == 0
    await complete(situation("x = ║"), NO_DEBOUNCE, ScriptedBackend(), track=track)
    assert track.rhythm.answer_ms > 0


async def test_cancel_closes_the_stream() -> None:
    backend = ScriptedBackend(gate=asyncio.Event())
    task = asyncio.create_task(complete(situation("x = ║"), NO_DEBOUNCE, backend))
    while not backend.num_open:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: (backend.num_open, backend.num_closed_early) == (0, 1))


async def test_stream_is_left_once_the_block_has_ended() -> None:
    backend = ScriptedBackend(("\n  y();\n", "}\n", "z();\n", "never read"))
    suggestion = await complete(situation("if (x) {║\n"), NO_DEBOUNCE, backend)
    assert suggestion.text == "\n  y();\n}"
    await until(lambda: (backend.num_open, backend.num_closed_early) == (0, 1))
    assert suggestion.usage.generated_tokens == 2


async def test_budget_takes_whole_lines_and_closes_the_stream() -> None:
    backend = ScriptedBackend(("a = 1\n    b = ", "2"))
    hold = asyncio.Event()
    original = backend.stream

    async def slow_stream(request):  # type: ignore[no-untyped-def]
        async for delta in original(request):
            yield delta
            await hold.wait()

    backend.stream = slow_stream  # type: ignore[method-assign]
    started_s = time.monotonic()
    suggestion = await complete(situation("def f():\n    ║\n"), NO_DEBOUNCE, backend, budget_ms=50)
    assert suggestion.text == "a = 1"
    assert time.monotonic() - started_s < 10
