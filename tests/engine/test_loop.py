"""Logits are computed for the allowed tokens alone where each row has such, with the answers of all logits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.loop import Loop
from engine.model.best import Best
from engine.request import CompletionRequest, Delta, SamplingParams
from engine.scheduler.sequence import Chunk
from engine.speculation.sources import EarlierAnswer
from tests.support.native import NATIVE_SHAPE
from tests.support.tiny_checkpoints import write_tiny_gguf

_Wanted = list[list[int] | None]


class _Strict:
    """What a decoder may do at most: everything that nobody asked for is gone."""

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch) -> None:
        self.wanted: _Wanted = []
        decoder = engine.loop._decoder
        logits = decoder.logits

        def restricted(hidden: torch.Tensor, token_ids: torch.Tensor | None = None) -> torch.Tensor:
            self.wanted.append(None if token_ids is None else sorted(set(token_ids.tolist())))
            computed = logits(hidden, token_ids)
            if token_ids is None:
                return computed
            return torch.full_like(computed, -torch.inf).index_copy(1, token_ids, computed[:, token_ids])

        patch.setattr(decoder, "logits", restricted)


@pytest.fixture(params=["torch", "native"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    path = str(write_tiny_gguf(tmp_path / "tiny.gguf", NATIVE_SHAPE, seed=1))
    if request.param == "torch":
        return Engine.load(EngineConfig(model=path, dtype="float32", max_context_tokens=256))
    request.getfixturevalue("native_library")
    return Engine.load(EngineConfig(model=path, precision="int8", max_context_tokens=256))


@pytest.fixture
def strict(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Strict]:
    with monkeypatch.context() as patch:
        yield _Strict(engine, patch)


def _request(prefix: str, **sampling: object) -> CompletionRequest:
    params = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return CompletionRequest(prefix, "\n", params)


def _allowed(engine: Engine, required: bytes) -> list[int]:
    pieces = engine._vocabulary.tokenizer.all_bytes
    return [i for i, piece in enumerate(pieces) if piece and (piece.startswith(required) or required.startswith(piece))]


_FREE = CompletionRequest("", prompt_ids=(5, 6, 7), sampling=_request("").sampling)
_SAMPLED = CompletionRequest("", prompt_ids=(5, 6, 7), sampling=_request("", temperature=1.0, seed=2).sampling)
_REQUESTS = [
    _request("if x:\n        "),
    _request("if x:\n\t"),
    _request("return x", temperature=1.0, seed=3),
    _request("if x:\n    ", temperature=2.0, seed=1, top_p=0.9),
    _request("for i in ran", max_tokens=1),
    _FREE,
    _SAMPLED,
]


def _answers(engine: Engine, requests: list[CompletionRequest]) -> list[tuple[str, tuple[int, ...], float | None]]:
    engine.cache.clear()
    answers = engine.complete_all(requests)
    engine.loop.check_idle()
    return [(answer.text, answer.token_ids, answer.finished.mean_logprob) for answer in answers]


def test_the_first_row_of_a_constrained_request_wants_few(engine: Engine, strict: _Strict) -> None:
    _answers(engine, [_request("if x:\n    ", temperature=1.0, seed=0)])
    assert strict.wanted[0] == _allowed(engine, b" ")
    assert strict.wanted[1:] == [None] * len(strict.wanted[1:])  # torch's, which finds the best there


def test_rows_together_want_what_any_of_them_may_choose(engine: Engine, strict: _Strict) -> None:
    _answers(engine, [_request("if x:\n    "), _request("if y:\n\t")])
    assert strict.wanted[0] == sorted(set(_allowed(engine, b" ") + _allowed(engine, b"\t")))
    strict.wanted.clear()
    for other in (_SAMPLED, _FREE):  # of which no logits, or all, are kept while the likeliest token is found
        _answers(engine, [_request("if x:\n    "), other])
        assert _allowed(engine, b" ") in strict.wanted
        strict.wanted.clear()


@pytest.mark.parametrize("at_once", [1, len(_REQUESTS)])
def test_answers_are_those_of_all_logits(
    engine: Engine, strict: _Strict, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    parts = [_REQUESTS[i : i + at_once] for i in range(0, len(_REQUESTS), at_once)]
    restricted = [answer for part in parts for answer in _answers(engine, part)]
    assert any(wanted is not None for wanted in strict.wanted)
    monkeypatch.setattr(Loop, "_only_wanted", lambda *_: None)
    whole = [answer for part in parts for answer in _answers(engine, part)]
    assert [answer[:2] for answer in restricted] == [answer[:2] for answer in whole]
    assert [answer[2] for answer in restricted] == pytest.approx([answer[2] for answer in whole], abs=1e-4)


def test_drafts_within_a_constraint(engine: Engine, strict: _Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft's row is constrained by what comes before it: nothing is restricted there."""
    only_wanted, num_constrained = Loop._only_wanted, 0

    def counting(loop: Loop, sampled: list[Chunk]) -> torch.Tensor | None:
        nonlocal num_constrained
        generations = [loop._jobs[chunk.sequence].generation for chunk in sampled if chunk.num_logits > 1]
        num_constrained += sum(generation.allowed_ids() is not None for generation in generations)
        return only_wanted(loop, sampled)

    monkeypatch.setattr(Loop, "_only_wanted", counting)
    for seed in range(8):  # some begin with a part of " ran"
        request = _request("for i in ran", temperature=1.0, seed=seed)
        (plain,) = engine.complete_all([request])
        deltas: list[Delta] = []
        errors: list[Exception] = []
        job = engine.prepare(request, deltas.append, errors.append)
        job.sources = (EarlierAnswer(len(job.sequence.token_ids), list(plain.token_ids)),)
        engine.loop.submit(job)
        while engine.loop.has_work and not errors:
            engine.loop.step()
        assert errors == []
        assert tuple(token for delta in deltas for token in delta.token_ids) == plain.token_ids
    assert num_constrained > 0


def test_those_that_draw_are_scored_with_the_others_but_few_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, kept = engine.loop._decoder, []
    best = decoder.best

    def counting(hidden: torch.Tensor, num_tokens: int, rows: Sequence[int]) -> Best:
        kept.append((len(hidden), list(rows)))
        return best(hidden, num_tokens, rows)

    drawing = [
        replace(_SAMPLED, prompt_ids=(5, 6, 7 + i), sampling=replace(_SAMPLED.sampling, seed=i, max_tokens=3))
        for i in range(10)
    ]
    alone = [_answers(engine, [request])[0] for request in drawing]
    monkeypatch.setattr(decoder, "best", counting)
    monkeypatch.setattr("engine.loop._SCORED_TOGETHER", 4)
    assert [answer[:2] for answer in _answers(engine, [_FREE, *drawing])[1:]] == [answer[:2] for answer in alone]
    assert max(len(rows) for _, rows in kept) == 4
    assert any(len(rows) == 4 == num_rows - 1 for num_rows, rows in kept), "the greedy one's are not kept"
