"""That what was said before gives the same suggestions as asking again, however one types."""

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from engine.errors import ServiceError
from engine.request import CompletionRequest, Delta, Finished, FinishReason, Timing, Usage
from lsp_server.backends.base import BackendState, BackendStatus
from lsp_server.completion.decide import indent_of
from lsp_server.completion.pipeline import Track, complete
from lsp_server.completion.request import Situation, Source, Suggestion
from tests.support.cursor import situation
from tests.support.lsp_session import NO_DEBOUNCE, until

_PROGRAM = """\
def area(shapes):
    total = 0
    for shape in shapes:
        if shape.kind == "circle":
            total += 3 * shape.r ** 2
        else:
            total += shape.w * shape.h

    return total


def main(path):
    with open(path) as file:
        shapes = [parse(line) for line in file]
    print(area(shapes))
"""


@dataclass
class Knowing:
    """A greedy model of one program: it goes on with it wherever the text so far is its beginning, else says nothing.

    So, as of any greedy model, its answer after a part of an answer is the rest of that. It ends as the engine does:
    at a stop string, at a line that is indented too little, or after ``max_tokens`` pieces.
    """

    program: str = _PROGRAM
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    max_pieces: int = 1000
    requests: list[CompletionRequest] = field(default_factory=list)
    num_open: int = 0

    status = BackendStatus(BackendState.READY, "knowing")

    async def ensure_ready(self) -> BackendStatus:
        return self.status

    async def restart(self) -> BackendStatus:
        return self.status

    async def aclose(self) -> None:
        """Nothing is held."""

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        self.num_open += 1
        try:
            text, reason = self._answer(request)
            at = 0
            while at < len(text):
                for _ in range(self.rng.randrange(3)):
                    await asyncio.sleep(0)
                size = self.rng.randint(1, 6)
                yield Delta(text[at : at + size], (1,), usage=Usage(10, 4, 1))
                at += size
            yield Delta("", (), Finished(reason, Usage(), Timing()))
        finally:
            self.num_open -= 1

    def _answer(self, request: CompletionRequest) -> tuple[str, FinishReason]:
        if not self.program.startswith(request.prefix):
            return "", FinishReason.STOP
        text, reason = self.program[len(request.prefix) :], FinishReason.STOP
        for stop in request.sampling.stop:
            text = text.partition(stop)[0]
        text = _until_dedent(text, request.prefix, request.sampling.min_indent)
        if len(text) > self.max_pieces:
            text, reason = text[: self.max_pieces], FinishReason.LENGTH
        return text, reason


def _until_dedent(text: str, prefix: str, min_indent: int) -> str:
    end, lines = 0, text.split("\n")
    for number, line in enumerate(lines):
        whole = prefix[prefix.rfind("\n") + 1 :] + line if number == 0 else line
        if number and whole.strip() and indent_of(whole) < min_indent:
            return text[: max(end - 1, 0)]
        end += len(line) + 1
    return text


class _Typist:
    """Types the program with errors, and what an editor adds."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.prefix = _PROGRAM[: self.rng.randrange(len(_PROGRAM))]

    def press(self) -> None:
        chance = self.rng.random()
        if chance < 0.75 and _PROGRAM.startswith(self.prefix):
            size = self.rng.choice((1, 1, 1, 1, 2, 7, 40))
            self.prefix = _PROGRAM[: len(self.prefix) + size]
        elif chance < 0.9:
            self.prefix = self.prefix[: -self.rng.choice((1, 1, 2, 5))]
        else:
            self.prefix += self.rng.choice("ab (\n")

    @property
    def situation(self) -> Situation:
        return Situation(self.prefix, "\n\nend\n", "python", is_explicit=self.rng.random() < 0.3)


def _shown(suggestion: Suggestion) -> tuple[object, ...]:
    return suggestion.text, suggestion.reason, suggestion.overlay


@pytest.mark.parametrize("seed", range(60))
async def test_every_suggestion_is_that_of_a_fresh_start(seed: int) -> None:
    typist, track, backend = _Typist(seed), Track(), Knowing(rng=random.Random(seed))
    backend.max_pieces = typist.rng.choice((5, 30, 1000))
    sources = set()
    for _ in range(60):
        typist.press()
        now = typist.situation
        task = asyncio.ensure_future(complete(now, NO_DEBOUNCE, backend, track=track))
        if typist.rng.random() < 0.3:  # the next key comes before the answer
            for _ in range(typist.rng.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            continue
        suggestion = await task
        sources.add(suggestion.source)
        assert _shown(suggestion) == _shown(await complete(now, NO_DEBOUNCE, Knowing(max_pieces=backend.max_pieces)))
        assert backend.num_open <= 2  # the engine ends what a newer request of the session supersedes
    assert Source.MODEL in sources
    await until(lambda: backend.num_open == 0)


async def test_typing_what_is_suggested_asks_once() -> None:
    backend, track = Knowing(), Track()
    start = _PROGRAM.index("total += 3")
    for end in range(start, _PROGRAM.index("\n", start) + 1):
        suggestion = await complete(Situation(_PROGRAM[:end], "\n"), NO_DEBOUNCE, backend, track=track)
        assert suggestion.text == _PROGRAM[end:].partition("\n")[0]
        assert suggestion.source is (Source.MODEL if end == start else Source.TYPED)
    assert len(backend.requests) == 1


async def test_deleting_what_was_typed_asks_nothing() -> None:
    backend, track, start = Knowing(), Track(), _PROGRAM.index("total += 3")
    texts = [
        (await complete(Situation(_PROGRAM[: start + n], "\n"), NO_DEBOUNCE, backend, track=track)).text
        for n in (0, 1, 2, 3, 2, 1, 0)
    ]
    assert texts[:3] == texts[:3:-1]
    assert len(backend.requests) == 1


async def test_a_running_answer_is_kept_while_it_agrees() -> None:
    backend, track = Knowing(), Track()
    first = asyncio.ensure_future(complete(Situation(_PROGRAM[:30], "\n"), NO_DEBOUNCE, backend, track=track))
    await until(lambda: track.answers.newest is not None and track.answers.newest.text)
    first.cancel()
    suggestion = await complete(Situation(_PROGRAM[:31], "\n"), NO_DEBOUNCE, backend, track=track)
    assert suggestion.text == _PROGRAM[31:].partition("\n")[0]
    assert len(backend.requests) == 1


async def test_what_disagrees_is_stopped_at_once() -> None:
    backend, track = Knowing(), Track()
    first = asyncio.ensure_future(complete(Situation(_PROGRAM[:30], "\n"), NO_DEBOUNCE, backend, track=track))
    await until(lambda: track.answers.newest is not None and track.answers.newest.text)
    first.cancel()
    await complete(Situation(_PROGRAM[:30] + "Z", "\n"), NO_DEBOUNCE, backend, track=track)
    assert len(backend.requests) == 2
    await until(lambda: backend.num_open == 0)


async def test_the_prompt_only_grows_and_names_its_anchor_and_session() -> None:
    backend, track = Knowing(program=""), Track(session="s")
    for drawn in ("a\nx║\nb", "a\nxy║\nb", "a\nxy\nz║\nb"):
        await complete(situation(drawn), NO_DEBOUNCE, backend, track=track)
    assert [request.prefix for request in backend.requests] == ["a\nx", "a\nxy", "a\nxy\nz"]
    assert {(request.anchor, request.suffix, request.session) for request in backend.requests} == {(2, "\nb", "s")}


async def test_drafts_are_what_was_cut_off_and_what_was_deleted() -> None:
    backend, track, start = Knowing(max_pieces=12), Track(), _PROGRAM.index("if shape")
    for end in (start, start + 3, start - 1):
        await complete(Situation(_PROGRAM[:end], "\n"), NO_DEBOUNCE, backend, track=track)
    drafts = [request.draft for request in backend.requests]
    assert drafts == ["", _PROGRAM[start + 3 : start + 12], _PROGRAM[start - 1 : start + 3]]


async def test_a_running_answer_that_fails_is_asked_anew() -> None:
    class Dying(Knowing):
        """Dies in the middle of its first answer."""

        async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
            if self.requests:
                async for delta in super().stream(request):
                    yield delta
                return
            self.requests.append(request)
            yield Delta("t", (1,))
            await asyncio.sleep(0.05)
            raise ServiceError("the engine is gone")

    backend, track, start = Dying(), Track(), _PROGRAM.index("total += 3")
    first = asyncio.ensure_future(complete(Situation(_PROGRAM[:start], "\n"), NO_DEBOUNCE, backend, track=track))
    await until(lambda: track.answers.newest is not None and track.answers.newest.text)
    first.cancel()
    suggestion = await complete(Situation(_PROGRAM[: start + 1], "\n"), NO_DEBOUNCE, backend, track=track)
    assert suggestion.text == _PROGRAM[start + 1 :].partition("\n")[0]
    assert (suggestion.source, len(backend.requests)) == (Source.MODEL, 2)
