"""The pipeline with a scripted engine: what is computed, shared, kept, tried again; and what is the same in the end."""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ServiceError
from engine.request import CompletionRequest, FileContext
from lsp_server.bulk.context import RepositoryContext
from lsp_server.bulk.events import Computing, Event, Loaded, Loading, Planned, Settled
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import Hole, SourceText
from lsp_server.bulk.journal import Journal
from lsp_server.bulk.requests import RequestOptions, key_of, placed, request_for, second_attempt, shown
from lsp_server.bulk.run import RunOptions, RunResult, run
from tests.support.bulk_holes import marker_holes, source_with
from tests.support.bulk_script import BAD, answer


def _options(mode: str = "plain", *, seed: int = 0, is_sequential: bool = False) -> RunOptions:
    return RunOptions(
        engine=EngineConfig(model="tiny"),
        model_identity="tiny",
        context=RepositoryContext({}, lambda path: None, 0),
        requests=RequestOptions(seed=seed),
        is_sequential=is_sequential,
        worker_command=(sys.executable, "-m", "tests.support.bulk_script", mode),
    )


async def _run(
    holes: Sequence[Hole], journal: Path, options: RunOptions | None = None, events: list[Event] | None = None
) -> RunResult:
    with Journal.open(journal) as opened:
        return await run(holes, opened, options or _options(), (events if events is not None else []).append)


def _sources(root: Path, num_files: int = 5, num_holes: int = 6) -> list[SourceText]:
    return [
        source_with(root, f"pkg/m{number}.py", "".join(f"x{number}_{i} = <FILL>\n" for i in range(num_holes)))
        for number in range(num_files)
    ]


def _holes(root: Path) -> list[Hole]:
    return [hole for source in _sources(root) for hole in marker_holes(source)]


def _seen(hole: Hole) -> Hole:
    """As the model is to see it: without the other markers of its file."""
    others = [other for other in marker_holes(hole.source) if other.start != hole.start]
    return placed(hole, [(other, "") for other in others])


def _told(fills: Sequence[Fill]) -> list[tuple[str, int, str, str, str, str, int]]:
    """Of fills what must not depend on the way to them."""
    return [(f.hole.source.relative, f.hole.start, f.state, f.text, f.reason, f.key, f.num_attempts) for f in fills]


async def test_every_hole_is_filled_in_the_order_of_the_holes(tmp_path: Path) -> None:
    holes, events = _holes(tmp_path), list[Event]()
    result = await _run(holes, tmp_path / "journal", events=events)
    assert [fill.hole for fill in result.fills] == holes
    for fill in result.fills:
        greedy = answer(request_for(_seen(fill.hole), RequestOptions()))
        assert fill.state is FillState.FILLED
        assert (fill.text == greedy) is (fill.num_attempts == 1) is (greedy != BAD)
    attempts = Counter(fill.num_attempts for fill in result.fills)
    assert attempts[1] > 10
    assert attempts[2] > 2
    assert [type(event) for event in events[:3]] == [Planned, Loading, Loaded]
    settled = [event for event in events if isinstance(event, Settled)]
    assert [event.num_settled for event in settled] == list(range(1, 31))
    assert [event.fill.hole for event in settled] != holes
    assert any(isinstance(event, Computing) for event in events)
    assert result.ready is not None
    assert result.summary is not None
    assert result.summary.progress.num_done == attempts[1] + 2 * attempts[2]


async def test_the_second_attempt_is_sampled_by_the_seed(tmp_path: Path) -> None:
    holes = _holes(tmp_path)
    results = [await _run(holes, tmp_path / f"journal{seed}", _options(seed=seed)) for seed in (0, 1)]
    for seed, result in enumerate(results):
        for fill in result.fills:
            request = request_for(_seen(fill.hole), RequestOptions())
            second = second_attempt(request, seed, "")
            assert fill.text == answer(request if fill.num_attempts == 1 else second)
            assert fill.key == key_of("tiny", request if fill.num_attempts == 1 else second)
    assert _told(results[0].fills) != _told(results[1].fills)


async def test_the_second_attempt_is_told_what_the_first_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = set[str]()

    def noting(request: CompletionRequest, seed: int, first_text: str) -> CompletionRequest:
        told.add(first_text)
        return second_attempt(request, seed, first_text)

    monkeypatch.setattr("lsp_server.bulk.run.second_attempt", noting)
    result = await _run(_holes(tmp_path), tmp_path / "journal", _options(seed=0))
    tried_again = [fill for fill in result.fills if fill.num_attempts > 1]
    assert tried_again
    assert told == {answer(request_for(_seen(fill.hole), RequestOptions())) for fill in tried_again}


async def test_a_journal_spares_the_engine(tmp_path: Path) -> None:
    holes, events = _holes(tmp_path), list[Event]()
    first = await _run(holes, tmp_path / "journal")
    again = await _run(holes, tmp_path / "journal", _options("cannot"), events)
    assert _told(again.fills) == _told(first.fills)
    assert all(fill.is_from_journal for fill in again.fills)
    assert not any(fill.is_from_journal for fill in first.fills)
    assert (again.ready, again.summary) == (None, None)
    assert not any(isinstance(event, Loading) for event in events)


@pytest.mark.parametrize("is_sequential", [False, True])
async def test_a_run_that_died_goes_on_and_ends_the_same(tmp_path: Path, is_sequential: bool) -> None:
    holes = _holes(tmp_path)
    whole = await _run(holes, tmp_path / "whole", _options(is_sequential=is_sequential))
    num_deaths = 0
    for limit in (0, 1, 7, 3, 11):
        with pytest.raises(ServiceError, match="killed by signal 9"):
            await _run(holes, tmp_path / "j", _options(f"die:{limit}", is_sequential=is_sequential))
        num_deaths += 1
    rest = await _run(holes, tmp_path / "j", _options(is_sequential=is_sequential))
    assert num_deaths == 5
    assert _told(rest.fills) == _told(whole.fills)
    assert rest.summary is not None
    assert whole.summary is not None
    assert rest.summary.progress.num_done == whole.summary.progress.num_done - (0 + 1 + 7 + 3 + 11)


async def test_equal_requests_are_computed_once(tmp_path: Path) -> None:
    text = "def f():\n    return <FILL>\n"
    sources = [source_with(tmp_path, f"{name}.py", text) for name in "abcdefgh"]
    holes = [hole for source in sources for hole in marker_holes(source)]
    result = await _run(holes, tmp_path / "journal")
    assert len({fill.key for fill in result.fills}) == 1
    assert result.summary is not None
    assert result.summary.progress.num_done == result.fills[0].num_attempts
    assert [fill.hole.source.relative for fill in result.fills] == [f"{name}.py" for name in "abcdefgh"]


async def test_an_answer_that_is_good_for_one_may_be_bad_for_another(tmp_path: Path) -> None:
    def hole(name: str, number: int) -> Hole:
        return marker_holes(source_with(tmp_path, name, f"x{number} = <FILL>\n"))[0]

    number = next(i for i in range(100) if answer(request_for(hole("a.py", i), RequestOptions())) == BAD)
    holes = [hole("a.py", number), hole("a.lua", number)]  # of Lua there is no grammar to be broken
    python, lua = (await _run(holes, tmp_path / "journal")).fills
    assert (lua.text, lua.num_attempts) == (BAD, 1)
    assert (python.state, python.num_attempts) == (FillState.FILLED, 2)
    assert python.key != lua.key


async def test_a_hole_sees_the_fills_before_it_if_asked(tmp_path: Path) -> None:
    (source,) = _sources(tmp_path, num_files=1)
    holes = marker_holes(source)
    result = await _run(holes, tmp_path / "journal", _options(is_sequential=True))
    filled: list[tuple[Hole, str]] = []
    for index, fill in enumerate(result.fills):
        seen = placed(fill.hole, [*filled, *((later, "") for later in holes[index + 1 :])])
        request = request_for(seen, RequestOptions())
        if fill.num_attempts == 1:
            assert fill.text == answer(request)
        filled.append((fill.hole, fill.text))
    assert len(filled) == 6
    apart = await _run(holes, tmp_path / "journal")
    assert [fill.text for fill in apart.fills[1:]] != [fill.text for fill in result.fills[1:]]


async def test_what_is_not_written_yet_elsewhere_is_not_shown(tmp_path: Path) -> None:
    text = "def f():\n    raise NotImplementedError\n\n\ndef g():\n    return <FILL>\n\n\nx = [<FILL>]\n"
    source = source_with(tmp_path, "a.py", text)
    stub = "raise NotImplementedError"
    start = text.index(stub)
    holes = [Hole(source, "stubs", start, start + len(stub), is_block=True), *marker_holes(source)]
    result = await _run(holes, tmp_path / "journal")
    for fill in result.fills:
        assert fill.state is FillState.FILLED, "other holes are no errors of this one"
        others = [(other, "") for other in holes if other is not fill.hole]
        request = request_for(shown(fill.hole, others), RequestOptions())
        assert "<FILL>" not in request.prefix + str(request.suffix)
        assert stub not in request.prefix + str(request.suffix)
        key = key_of("tiny", request)
        assert fill.key in (key, key_of("tiny", second_attempt(request, 0, "")))


async def test_what_never_ends_is_told_after_the_second_attempt(tmp_path: Path) -> None:
    holes = [replace(hole, max_tokens=7) for hole in _holes(tmp_path)]
    result = await _run(holes, tmp_path / "journal", _options("length"))
    assert {(fill.state, fill.text, fill.num_attempts) for fill in result.fills} == {(FillState.FAILED, "", 2)}
    assert {fill.reason for fill in result.fills} == {"not finished within 7 tokens; a larger max_tokens allows more"}


async def test_a_refused_request_fails_alone_and_is_asked_again_next_time(tmp_path: Path) -> None:
    holes = _holes(tmp_path)
    result = await _run(holes, tmp_path / "journal", _options("refuse:2"))
    (failed,) = (fill for fill in result.fills if fill.state is FillState.FAILED)
    assert failed.reason == "max_tokens is 9000; there is no room"
    again = await _run(holes, tmp_path / "journal")
    assert all(fill.state is FillState.FILLED for fill in again.fills)
    assert sum(not fill.is_from_journal for fill in again.fills) == 1


async def test_an_answer_is_kept_though_it_is_no_good(tmp_path: Path) -> None:
    holes = _holes(tmp_path)
    result = await _run(holes, tmp_path / "journal")
    with Journal.open(tmp_path / "journal") as journal:
        requests = [request_for(_seen(fill.hole), RequestOptions()) for fill in result.fills]
        kept = [journal.get(key_of("tiny", request)) for request in requests]
    assert [record.text for record in kept if record] == list(map(answer, requests))


async def test_cancelling_ends_within_a_moment_and_keeps_what_is_done(tmp_path: Path) -> None:
    holes, events = _holes(tmp_path), list[Event]()
    running = asyncio.create_task(_run(holes, tmp_path / "journal", _options("slow:50"), events))
    while sum(isinstance(event, Settled) for event in events) < 3:
        await asyncio.sleep(0.01)
    num_settled = sum(isinstance(event, Settled) for event in events)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 2.0)
    rest = await _run(holes, tmp_path / "journal")
    assert sum(fill.is_from_journal for fill in rest.fills) >= num_settled
    assert _told(rest.fills) == _told((await _run(holes, tmp_path / "whole")).fills)


@pytest.mark.parametrize("num_good", [30, 33])
async def test_an_error_beside_the_engine_ends_the_run(tmp_path: Path, num_good: int) -> None:
    """Whoever feeds the engine has it, and nobody would ask the engine for more."""

    class Context(RepositoryContext):
        num_asked = 0

        def files_for(self, source: SourceText) -> tuple[FileContext, ...]:
            self.num_asked += 1
            if self.num_asked > num_good:
                raise ZeroDivisionError
            return super().files_for(source)

    options = replace(_options(), context=Context({}, lambda path: None, 0))
    running = asyncio.create_task(_run(_holes(tmp_path), tmp_path / "journal", options))
    ended, _ = await asyncio.wait([running], timeout=20.0)
    running.cancel()
    with pytest.raises(ZeroDivisionError):
        await running
    assert ended, "only because it was cancelled"


async def test_no_holes_need_no_engine(tmp_path: Path) -> None:
    result = await _run([], tmp_path / "journal", _options("cannot"))
    assert result.fills == ()
