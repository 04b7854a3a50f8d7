"""Whatever happens around a request, its tokens are those of plain decoding.

A tiny model, in float32 and in compiled code, runs random schedules: requests of both lanes that share prefixes,
arrive and are cancelled between two layers, supersede each other, and get right, wrong and half-right drafts, in a
cache that is too small for all of them. The slow twin computes each request alone, in one piece, from nothing. Freed
blocks hold NaN.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import LaneLimits, Profile
from engine.engine import Engine
from engine.loop import Job
from engine.model.decoder import ForwardPass
from engine.model.native.decoder import NativePass
from engine.request import CompletionRequest, Delta, FinishReason, Lane, SamplingParams
from engine.speculation.sources import EarlierAnswer, NGrams
from tests.support.kv import poison_freed_blocks, small_engine, small_native_engine

_PROFILE = Profile(LaneLimits(3, 9), LaneLimits(4, 14), bulk_share=0.3, max_drafts=5)
_PLAIN = Profile(LaneLimits(1, 512), LaneLimits(1, 512), bulk_share=0.1, max_drafts=0)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, Engine]]:
    """The engine under test, and one that computes each request by itself."""
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        engine = small_engine(folder, patch, num_blocks=34).with_profile(_PROFILE)
        plain = small_engine(folder, patch, num_blocks=34).with_profile(_PLAIN)
    poison_freed_blocks(engine.cache, engine.loop._storage)
    yield engine, plain


class _Plain:
    """The tokens of plain decoding, remembered."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[tuple[tuple[int, ...], SamplingParams], tuple[int, ...]] = {}

    def tokens(self, request: CompletionRequest) -> tuple[int, ...]:
        key = (request.prompt_ids, request.sampling)
        if key not in self._known:
            self._engine.cache.clear()
            (answer,) = self._engine.complete_all([CompletionRequest("", prompt_ids=key[0], sampling=key[1])])
            self._known[key] = answer.token_ids
        return self._known[key]


@dataclass
class _Asked:
    request: CompletionRequest
    job: Job
    deltas: list[Delta] = field(default_factory=list)
    is_cancelled: bool = False

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas for token in delta.token_ids)

    @property
    def reason(self) -> FinishReason | None:
        ends = [delta.finished.reason for delta in self.deltas if delta.finished is not None]
        assert len(ends) <= 1, "a request has ended twice"
        assert not ends or self.deltas[-1].finished is not None, "something came after the end"
        return ends[0] if ends else None


class _Schedule:
    """Plays a random schedule on the engine; ``seed`` decides everything."""

    def __init__(self, engine: Engine, plain: _Plain, seed: int) -> None:
        self._engine = engine
        self._plain = plain
        self._random = random.Random(seed)
        self._bases = [[self._random.randrange(250) for _ in range(40)] for _ in range(3)]
        self._num_left = self._random.randint(3, 10)
        self.asked: list[_Asked] = []

    def run(self, patch: pytest.MonkeyPatch, kind: type[ForwardPass] | type[NativePass]) -> None:
        advance: Callable[[Any], None] = kind.advance

        def disturbed(forward: Any) -> None:
            advance(forward)
            if forward._storage is self._engine.loop._storage:  # not the plain one
                self._disturb(0.12)  # as another thread would, between two layers

        patch.setattr(kind, "advance", disturbed)
        loop = self._engine.loop
        while self._num_left or loop.has_work:
            self._disturb(0.5)
            loop.step()
            loop.scheduler.check_integrity()
        loop.check_idle()
        for asked in self.asked:
            self._check(asked)

    def _check(self, asked: _Asked) -> None:
        expected = self._plain.tokens(asked.request)
        if asked.reason in (FinishReason.CANCELLED, FinishReason.SUPERSEDED):
            assert asked.is_cancelled or asked.request.session
            assert asked.token_ids == expected[: len(asked.token_ids)]
        else:
            assert asked.reason in (FinishReason.STOP, FinishReason.LENGTH)
            assert asked.token_ids == expected

    def _disturb(self, probability: float) -> None:
        pick = self._random
        if self._num_left and pick.random() < probability:
            self._num_left -= 1
            self._submit()
        if self.asked and pick.random() < probability / 6:
            asked = pick.choice(self.asked)
            asked.is_cancelled = True
            self._engine.loop.cancel(asked.job)

    def _submit(self) -> None:
        pick = self._random
        prompt = pick.choice(self._bases)[: pick.randint(1, 40)]
        prompt = prompt + [pick.randrange(250) for _ in range(pick.randint(0, 12))]
        sampling = SamplingParams(
            max_tokens=pick.choice([0, 1, 2, 7, 12, 30]),
            temperature=pick.choice([0.0, 0.0, 0.0, 1.0]),
            seed=pick.randrange(5),
            top_p=pick.choice([1.0, 0.9]),
        )
        request = CompletionRequest(
            "",
            prompt_ids=tuple(prompt),
            sampling=sampling,
            lane=pick.choice(list(Lane)),
            session=pick.choice(["", "", "", "a", "b"]),
        )
        deltas: list[Delta] = []
        job = self._engine.prepare(request, deltas.append, _fail)
        drafts = [token if pick.random() < 0.8 else 0 for token in self._plain.tokens(request)]
        job.sources = pick.choice([(), (NGrams(),), (EarlierAnswer(len(prompt), drafts), NGrams())])
        self.asked.append(_Asked(request, job, deltas))
        self._engine.loop.submit(job)


def _fail(error: Exception) -> None:
    raise AssertionError("a request failed") from error


@pytest.fixture(scope="module", params=["int8", "int4"])
def native_engines(
    request: pytest.FixtureRequest, native_library: object, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Engine, Engine]:
    """The same in compiled code."""
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        engine = small_native_engine(folder, patch, 10, request.param).with_profile(_PROFILE)
        plain = small_native_engine(folder, patch, 10, request.param).with_profile(_PLAIN)
    poison_freed_blocks(engine.cache, engine.loop._storage)
    return engine, plain


@settings(max_examples=300, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_schedule_gives_the_tokens_of_plain_decoding(engines: tuple[Engine, Engine], seed: int) -> None:
    engine, plain = engines
    with pytest.MonkeyPatch.context() as patch:
        _Schedule(engine, _Plain(plain), seed).run(patch, ForwardPass)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_schedule_in_compiled_code(native_engines: tuple[Engine, Engine], seed: int) -> None:
    engine, plain = native_engines
    with pytest.MonkeyPatch.context() as patch:
        _Schedule(engine, _Plain(plain), seed).run(patch, NativePass)
