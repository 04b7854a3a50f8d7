"""The engine on a tiny checkpoint: cached = uncached, constraints, cancellation, and errors at load."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.engine import AsyncEngine, Engine
from engine.errors import CheckpointError, ConfigError, RequestError, ServiceError
from engine.request import CompletionRequest, Delta, Finished, FinishReason, SamplingParams
from tests.support.tiny_checkpoints import TinyShape, write_tiny_gguf


def _load(path: Path) -> Engine:
    return Engine.load(EngineConfig(model=str(path), dtype="float32", max_context_tokens=512))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return _load(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=1))


@pytest.fixture(scope="module")
def fresh_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A second one, to compare with."""
    return _load(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=1))


def _complete(engine: Engine, request: CompletionRequest) -> tuple[str, tuple[int, ...], Finished]:
    deltas = list(engine.generate(request))
    assert all(delta.finished is None for delta in deltas[:-1])
    assert deltas[-1].finished is not None
    ids = tuple(i for delta in deltas for i in delta.token_ids)
    return "".join(delta.text for delta in deltas), ids, deltas[-1].finished


def _request(prefix: str, suffix: str | None = "", **sampling: object) -> CompletionRequest:
    return CompletionRequest(prefix, suffix, SamplingParams(**{"max_tokens": 12, **sampling}))  # type: ignore[arg-type]


def test_info_says_what_was_loaded(engine: Engine) -> None:
    info = engine.info
    assert (info.architecture, info.fim_family, info.dtype, info.context_tokens) == ("qwen2", "qwen", "float32", 512)
    assert info.self_test == "failed"  # random weights fill no hole
    assert info.memory_bytes > info.num_parameters * 4


_edits = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(["a", "for x in y:\n", "    ", "return 1", "é"])), max_size=6
)


@settings(max_examples=25, derandomize=True, deadline=None)
@given(edits=_edits)
def test_what_is_cached_changes_no_answer(engine: Engine, fresh_engine: Engine, edits: list[tuple[int, str]]) -> None:
    """A session of edits on one engine, each answer compared with an engine that has forgotten everything."""
    text = "def add(a, b):\n    return "
    for position, new in edits:
        at = min(position, len(text))
        text = text[:at] + new + text[at:]
        request = _request(text, "\n\nprint(1)\n")
        fresh_engine._model.cache.truncate(0)
        cached, plain = _complete(engine, request), _complete(fresh_engine, request)
        assert cached[:2] == plain[:2]
        assert plain[2].usage.cached_tokens == 0
        assert engine._model.cache.token_ids[: cached[2].usage.prompt_tokens] == engine._prompt(request).ids


def test_appending_computes_only_what_was_typed(engine: Engine) -> None:
    _complete(engine, _request("x = 1\nfor i", "\nend"))
    usage = _complete(engine, _request("x = 1\nfor i in", "\nend"))[2].usage
    assert usage.prompt_tokens - usage.cached_tokens <= 4
    usage = _complete(engine, _request("x = 1\nfor i in", "\nend"))[2].usage
    assert usage.prompt_tokens - usage.cached_tokens == 1


def test_the_answer_begins_after_the_required_space(engine: Engine) -> None:
    for indent in ("    ", "\t", "        ", "  \t "):
        request = _request("if x:\n" + indent, "\n")
        text, ids, _ = _complete(engine, request)
        whole = engine.detokenize(list(ids))
        assert whole.startswith(indent[-1])
        assert whole[1:].startswith(text.rstrip("\ufffd"))


def test_limits_and_stop_strings(engine: Engine) -> None:
    text, ids, finished = _complete(engine, _request("def f():\n", max_tokens=5))
    assert (len(ids), finished.reason) == (5, FinishReason.LENGTH)
    stop = text[1:3]
    cut, _, finished = _complete(engine, _request("def f():\n", max_tokens=5, stop=(stop,)))
    assert (finished.reason, finished.stop_string) == (FinishReason.STOP, stop)
    assert cut == text[: text.index(stop)]
    _, ids, finished = _complete(engine, _request("def f():\n", max_tokens=0))
    assert (ids, finished.reason, finished.timing.first_token_ms) == ((), FinishReason.LENGTH, None)


def test_a_seed_gives_the_same_text(engine: Engine) -> None:
    request = _request("a", temperature=1.0, seed=5)
    assert _complete(engine, request)[0] == _complete(engine, request)[0]
    other = replace(request, sampling=replace(request.sampling, seed=6))
    assert _complete(engine, request)[0] != _complete(engine, other)[0]


def test_left_to_right_has_no_markers(engine: Engine) -> None:
    ids = engine._prompt(_request("<|fim_middle|>def", None)).ids
    assert not any(engine._model.tokenizer.is_control(i) for i in ids)
    with pytest.raises(RequestError, match="the prompt is empty"):
        engine.generate(_request("", None))


def test_a_padded_embedding_yields_no_token_outside_the_vocabulary(tmp_path: Path) -> None:
    engine = _load(write_tiny_gguf(tmp_path / "padded.gguf", TinyShape(num_padding_tokens=4000)))
    _, ids, _ = _complete(engine, _request("x", temperature=5.0, seed=1, max_tokens=200))
    assert ids
    assert max(ids) < engine._model.tokenizer.vocab_size


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "short.gguf", TinyShape(num_padding_tokens=-5))
    with pytest.raises(CheckpointError, match=r"short.gguf has \d+ tokens in its vocabulary, \d+ in its embedding"):
        _load(path)


def test_tokens_that_repeat_what_was_typed_do_not_count(engine: Engine) -> None:
    text, ids, finished = _complete(engine, _request("x = def", max_tokens=1))
    assert len(text.encode()) > 0
    assert finished.usage.generated_tokens == len(ids) >= 1


def test_a_tiny_temperature_is_nearly_greedy(engine: Engine) -> None:
    assert _complete(engine, _request("a", temperature=1e-40, seed=1))[0] == _complete(engine, _request("a"))[0]


def test_cancelling_between_layers_commits_nothing_and_the_next_answer_is_right(engine: Engine) -> None:
    request = _request("def g(x):\n    return x", "\n")
    expected = _complete(engine, request)[:2]
    for num_layers in range(5):
        engine._model.cache.truncate(3)
        asked = iter([False] * num_layers + [True] * 100)
        deltas = list(engine.generate(request, lambda asked=asked: next(asked)))  # type: ignore[misc]
        assert deltas[-1].finished is not None
        assert deltas[-1].finished.reason is FinishReason.CANCELLED
        if num_layers < 2:  # the first pass was given up
            assert len(engine._model.cache.token_ids) <= 3
        assert _complete(engine, request)[:2] == expected


def test_a_long_prompt_is_computed_in_pieces_with_the_same_result(
    engine: Engine, fresh_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = _request("x = [1, 2, 3]\n" * 30, "\n")
    whole = _complete(fresh_engine, request)
    monkeypatch.setattr("engine.loop._PREFILL_CHUNK_TOKENS", 7)
    engine._model.cache.truncate(0)
    assert _complete(engine, request)[:2] == whole[:2]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dtype": "int3"}, ConfigError, "engine.dtype is 'int3'; it must be one of auto, bfloat16, float32"),
        ({"device": "tpu"}, ConfigError, "engine.device is 'tpu'"),
        ({"fim_family": "nope"}, CheckpointError, "'nope' is not a known prompt format"),
        ({"fim_family": "starcoder"}, CheckpointError, "needs the tokens <fim_prefix>"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, change: dict[str, str], error: type[Exception], message: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(num_layers=1))
    with pytest.raises(error, match=message):
        Engine.load(EngineConfig(**{"model": str(path), **change}))  # type: ignore[arg-type]


def test_cuda_is_refused_where_there_is_none(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ConfigError, match="torch finds no CUDA device"):
        Engine.load(EngineConfig(model=str(tmp_path), device="cuda"))


class _SlowEngine:
    """The real engine, whose passes are held up until the test lets them go on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.started = 0
        self.is_held = False

    def generate(self, request: CompletionRequest, is_cancelled: object, arrival: float) -> Iterator[Delta]:
        self.started += 1

        def held() -> bool:
            while self.is_held and not is_cancelled():  # type: ignore[operator]
                time.sleep(0.001)
            return bool(is_cancelled())  # type: ignore[operator]

        return self._engine.generate(request, held, arrival)


async def _until(condition: object, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.002)


async def test_streams_run_in_order_and_give_the_blocking_engine_s_text(engine: Engine) -> None:
    requests = [_request("a"), _request("def f(x):\n    "), _request("a")]
    expected = [_complete(engine, request)[0] for request in requests]
    runner = AsyncEngine(engine)

    ended = []

    async def read(number: int) -> str:
        text = "".join([delta.text async for delta in runner.stream(requests[number])])
        ended.append(number)
        return text

    assert await asyncio.gather(*map(read, range(3))) == expected
    assert ended == [0, 1, 2]
    await _until(lambda: not runner.num_running)
    assert (runner.num_running, runner.num_waiting) == (0, 0)
    await runner.aclose()


async def test_closing_a_stream_stops_the_running_pass_and_drops_waiting_ones(engine: Engine) -> None:
    slow = _SlowEngine(engine)
    runner = AsyncEngine(slow)  # type: ignore[arg-type]
    slow.is_held = True
    readers = [asyncio.create_task(anext(runner.stream(_request("a")))) for _ in range(3)]
    await _until(lambda: runner.num_running == 1 and runner.num_waiting == 2)
    readers[1].cancel()
    await _until(lambda: runner.num_waiting == 1)  # while the first is still running
    assert runner.num_running == 1
    readers[0].cancel()
    await _until(lambda: slow.started == 2)  # the second never reached the engine, the third runs
    slow.is_held = False
    assert (await readers[2]).token_ids
    assert [reader.cancelled() for reader in readers] == [True, True, False]
    await _until(lambda: runner.num_running == 0)
    await runner.aclose()


async def test_closing_the_engine_ends_every_reader(engine: Engine) -> None:
    slow = _SlowEngine(engine)
    runner = AsyncEngine(slow)  # type: ignore[arg-type]
    slow.is_held = True

    async def read() -> list[Delta]:
        return [delta async for delta in runner.stream(_request("a"))]

    readers = [asyncio.create_task(read()) for _ in range(3)]
    await _until(lambda: runner.num_running == 1 and runner.num_waiting == 2)
    await runner.aclose()
    for deltas in await asyncio.wait_for(asyncio.gather(*readers), 5):
        assert deltas[-1].finished is not None
        assert deltas[-1].finished.reason is FinishReason.CANCELLED
    with pytest.raises(ServiceError, match="the engine is closed"):
        await anext(runner.stream(_request("a")))
    assert runner.num_waiting == 0


async def test_a_bad_prompt_is_raised_to_its_reader_alone(engine: Engine) -> None:
    runner = AsyncEngine(engine)
    with pytest.raises(RequestError, match="empty"):
        await anext(runner.stream(_request("", None)))
    assert (await anext(runner.stream(_request("a")))).token_ids
    await _until(lambda: runner.num_running == 0)
    await runner.aclose()
