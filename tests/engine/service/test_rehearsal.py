"""The time of a suggestion is measured once, in the lane of those who do not wait, and never beside somebody's work."""

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.machine.record import Machine, machine_key, read_machine
from engine.request import Lane
from engine.service.rehearsal import measured_suggestion
from engine.service.runtime import LoadedEngine
from tests.engine.service.fakes import INFO, FakeEngine
from tests.support.machine import FAST, SMALL, keep_machine

CONFIG = EngineConfig(model=SMALL)


def _loaded(engine: FakeEngine, dtype: str = "int8") -> LoadedEngine:
    return LoadedEngine(replace(INFO, model=SMALL, dtype=dtype), engine)


def _known() -> Machine | None:
    return read_machine(machine_key(CONFIG))


async def test_it_is_measured_once_for_each_precision() -> None:
    keep_machine(FAST)
    engine = FakeEngine(token_s=0.001)
    took_ms = await measured_suggestion(CONFIG, _loaded(engine))
    assert took_ms is not None
    known = _known()
    assert known is not None and known.suggestion_ms == {f"{SMALL} int8": round(took_ms, 1)} and known.rates == FAST
    num_requests = len(engine.requests)
    assert await measured_suggestion(CONFIG, _loaded(engine)) is None
    assert len(engine.requests) == num_requests
    assert await measured_suggestion(CONFIG, _loaded(engine, "bfloat16")) is not None
    known = _known()
    assert known is not None and known.suggestion_ms.keys() == {f"{SMALL} int8", f"{SMALL} exact"}


async def test_it_asks_for_a_keystroke_after_what_is_cached() -> None:
    engine = FakeEngine()
    await measured_suggestion(CONFIG, _loaded(engine))
    pairs = list(zip(engine.requests[::2], engine.requests[1::2], strict=True))
    assert len(pairs) == 3
    for cached, asked in pairs:
        assert asked.prefix.startswith(cached.prefix[-1000:]) or cached.prefix[-1000:] in asked.prefix
        assert len(asked.prefix) == len(cached.prefix) + 9 and asked.suffix == cached.suffix
        assert (asked.sampling.max_tokens, asked.sampling.ignore_eos, asked.lane) == (12, True, Lane.BULK)
        assert "\n" not in asked.prefix[len(cached.prefix) :]


@pytest.mark.parametrize("model", ["model.gguf", "hf:org/repo"])
async def test_a_model_that_is_not_of_the_catalogue_is_left_alone(model: str) -> None:
    engine = FakeEngine()
    assert await measured_suggestion(replace(CONFIG, model=model), _loaded(engine)) is None
    assert engine.requests == []


async def test_somebody_who_works_is_left_alone() -> None:
    engine = FakeEngine(num_running=1)
    assert await measured_suggestion(CONFIG, _loaded(engine)) is None
    assert engine.requests == [] and _known() is None


async def test_a_cache_folder_that_cannot_be_used_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MIDLINE_CACHE_DIR", __file__)
    assert await measured_suggestion(CONFIG, _loaded(FakeEngine())) is None
    assert "the time of a suggestion was not recorded" in caplog.text
