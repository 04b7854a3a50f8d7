"""Who types on supersedes one request after the other: what they have in common is computed once, by whichever of them
is at it, and only the rest counts as wasted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from engine.config import LaneLimits, Profile
from engine.engine import Engine
from engine.model.decoder import ForwardPass
from engine.request import CompletionRequest, Delta, Finished, FinishReason, Lane, SamplingParams
from tests.support.kv import small_engine

_PROFILE = Profile(LaneLimits(4, 16), LaneLimits(4, 32), bulk_share=0.2, max_drafts=7)
_PROMPT = list(range(30, 62))
"""Two passes of sixteen tokens."""


@dataclass
class _Counts:
    num_rows: int = 0
    num_wasted: int = 0
    reasons: list[FinishReason] = field(default_factory=list)

    def on_pass(self, lane: Lane, num_rows: int, seconds: float, num_keys: tuple[int, int]) -> None:
        self.num_rows += num_rows

    def on_end(self, lane: Lane, finished: Finished) -> None:
        self.reasons.append(finished.reason)

    def on_waste(self, lane: Lane, num_tokens: int) -> None:
        self.num_wasted += num_tokens


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    loaded = small_engine(tmp_path, monkeypatch, num_blocks=34).with_profile(_PROFILE)
    loaded.cache.clear()
    return loaded


@pytest.fixture
def counts(engine: Engine) -> _Counts:
    engine.loop.observer = _Counts()
    return engine.loop.observer


@pytest.fixture
def at_layer(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[], None]]:
    """Number of layers that have been computed -> what happens then."""
    events: dict[int, Callable[[], None]] = {}
    advance, num_layers = ForwardPass.advance, 0

    def watched(self: ForwardPass) -> None:
        nonlocal num_layers
        advance(self)
        num_layers += 1
        if num_layers in events:
            events[num_layers]()

    monkeypatch.setattr(ForwardPass, "advance", watched)
    return events


def _ask(engine: Engine, token_ids: list[int], max_tokens: int = 2) -> list[Delta]:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    request = CompletionRequest("", prompt_ids=tuple(token_ids), sampling=sampling, session="buffer")
    deltas: list[Delta] = []

    def fail(error: Exception) -> None:
        raise error

    engine.loop.submit(engine.prepare(request, deltas.append, fail))
    return deltas


def _finish(engine: Engine) -> None:
    while engine.loop.has_work:
        engine.loop.step()
        engine.loop.scheduler.check_integrity()
    engine.loop.check_idle()


def test_a_prefill_that_several_in_turn_have_superseded_goes_on(
    engine: Engine, counts: _Counts, at_layer: dict[int, Callable[[], None]]
) -> None:
    answers: list[list[Delta]] = []

    def type_on() -> None:
        answers.extend(_ask(engine, [*_PROMPT, *range(70, 70 + number)]) for number in (1, 2, 3))

    at_layer[1] = type_on
    _ask(engine, _PROMPT)
    _finish(engine)
    assert counts.reasons == [FinishReason.SUPERSEDED] * 3 + [FinishReason.LENGTH]
    assert counts.num_wasted == 0
    last = answers[-1][-1]
    assert last.finished is not None and last.usage.cached_tokens == 16
    assert counts.num_rows == len(_PROMPT) + 3 + 1  # each token once, and the first of the answer
    engine.cache.clear()
    plain = _ask(engine, [*_PROMPT, 70, 71, 72])
    _finish(engine)
    assert [delta.token_ids for delta in plain] == [delta.token_ids for delta in answers[-1]]


def test_what_the_last_one_does_not_begin_with_is_given_up_and_counted(
    engine: Engine, counts: _Counts, at_layer: dict[int, Callable[[], None]]
) -> None:
    at_layer[1] = lambda: _ask(engine, _PROMPT) and None
    at_layer[2] = lambda: _ask(engine, [9, *_PROMPT]) and None
    _ask(engine, _PROMPT)
    _finish(engine)
    assert counts.num_wasted == 16  # the pass that was under way


def test_of_a_superseded_answer_only_what_was_generated_is_wasted(engine: Engine, counts: _Counts) -> None:
    answer = _ask(engine, _PROMPT, max_tokens=12)
    while len(answer) < 5:
        engine.loop.step()
    num_generated = sum(len(delta.token_ids) for delta in answer)
    typed = 99 if answer[0].token_ids[0] != 99 else 98
    newer = _ask(engine, [*_PROMPT, typed])
    _finish(engine)
    assert newer[-1].usage.cached_tokens == len(_PROMPT)
    assert counts.num_wasted == num_generated - 1  # the last one has not been computed


def test_a_cancelled_request_is_wasted_as_far_as_it_was_computed(engine: Engine, counts: _Counts) -> None:
    sampling = SamplingParams(max_tokens=12, ignore_eos=True)
    request = CompletionRequest("", prompt_ids=tuple(_PROMPT), sampling=sampling)
    list(engine.generate(replace(request, sampling=SamplingParams(max_tokens=0))))
    counts.num_wasted = 0
    answer = engine.generate(request)
    while not next(answer).token_ids:
        pass
    answer.close()  # type: ignore[attr-defined]
    assert counts.reasons[-1] is FinishReason.CANCELLED
    assert counts.num_wasted == 1  # all but one token of the prompt was cached
