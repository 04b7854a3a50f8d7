"""A seeded session at a real server with a real model, each of whose suggestions is judged."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from lsp_server.completion.decide import refusal
from lsp_server.completion.request import EmptyReason, Situation, Source, Suggestion
from lsp_server.postprocess import Cleaned
from lsp_server.session import Cursor
from tests.support.lsp_session import InProcessServer, until
from tests.support.screen import Screen, inserted
from tests.support.twins import ColdEngine, EngineBackend, Judge
from tests.support.typist import Typist

_TIMEOUT_S = 60
_OF_THE_TEXT = (EmptyReason.NOTHING_GENERATED, EmptyReason.DUPLICATES_SUFFIX, EmptyReason.REPETITION)


@dataclass
class Asked:
    """A request whose answer has not been waited for."""

    answer: "asyncio.Future[dict[str, Any]]"
    situation: Situation
    here: tuple[int, int]


class EditSession:
    """One document. ``num`` counts what was done and shown."""

    def __init__(
        self, running: InProcessServer, backend: EngineBackend, cold: ColdEngine, screen: Screen, typist: Typist
    ) -> None:
        self.server, self.backend = running.server.session, backend
        self.judge = Judge(cold, self.server.config)
        self.screen, self.typist = screen, typist
        self.num = self.judge.num
        self._watch_versions()

    async def play(self, num_keys: int, rest_share: float = 0.0) -> None:
        """Wait for each suggestion before the next key; sometimes rest until nothing more is computed."""
        ghost = ""
        for _ in range(num_keys):
            self.num[self.typist.press(ghost)] += 1
            ghost = await self.ask(is_explicit=self.typist.rng.random() < 0.5)
            if self.typist.rng.random() < rest_share:
                await until(lambda: self.server._idle is None or self.server._idle.done())

    async def ask(self, is_explicit: bool = False) -> str:
        """The suggestion at the cursor, judged."""
        num_before = len(self.backend.requests)
        text = await self.screen.suggested(is_explicit)
        document = self.server.documents.get(self.screen.uri)
        assert document is not None and document.full_text() == self.screen.text
        self._check(text, replace(self.screen.situation, is_explicit=is_explicit), num_before)
        return text

    async def play_fast(self, num_keys: int, pauses_s: tuple[float, ...]) -> None:
        """The next key often comes before the answer."""
        ghost, rng, waiting = "", self.typist.rng, list[Asked]()
        for _ in range(num_keys):
            self.typist.press(ghost)
            asked = Asked(self.screen.ask(), self.screen.situation, self.screen.position(self.screen.cursor))
            await asyncio.sleep(rng.choice(pauses_s))
            if rng.random() < 0.1:  # also on a machine that is slower than the pauses
                await asyncio.wait([asked.answer], timeout=_TIMEOUT_S)
            if rng.random() < 0.6:
                waiting.append(asked)
                continue
            ghost = await self.text_of(asked.answer, asked.here)
            if refusal(asked.situation, self.judge.config) is None:
                self.check_text(ghost, asked.situation)
        for asked in waiting:
            text = await self.text_of(asked.answer, asked.here)
            self.num["in time" if text else "too late"] += 1
            if text:
                self.check_text(text, asked.situation)

    def check_text(self, text: str, situation: Situation) -> None:
        """Judge what was shown, without knowing how the server came by it."""
        for reason in (None,) if text else _OF_THE_TEXT:
            with contextlib.suppress(AssertionError):
                return self.judge.check_rest(Cleaned(text, reason), self._requests, situation)
        raise AssertionError(f"{text!r} was never said")

    async def text_of(self, answer: "asyncio.Future[dict[str, Any]]", here: tuple[int, int] | None = None) -> str:
        """The text of an answer to a request at ``here``, or at the cursor."""
        reply = await asyncio.wait_for(answer, _TIMEOUT_S)
        return inserted(reply["result"], here or self.screen.position(self.screen.cursor))

    def _check(self, text: str, situation: Situation, num_before: int) -> None:
        entry, new = self.server.recent[-1], self.backend.requests[num_before:]
        if (reason := refusal(situation, self.judge.config)) is not None:
            assert (text, entry.outcome, new) == ("", reason.value, [])
            self.num["refused"] += 1
            return
        assert (entry.outcome == "suggested") is bool(text)
        shown = Cleaned(text, None if text else EmptyReason(entry.outcome))
        self.num[entry.source] += 1
        if entry.source == Source.MODEL.value:
            self.judge.check_model(shown, new[-1], situation)
        else:
            assert new == []
            self.judge.check_rest(shown, self._requests, situation)

    @property
    def _requests(self) -> list["Any"]:
        return self.backend.idle_requests + self.backend.requests

    def _watch_versions(self) -> None:
        """No suggestion is for a text that has changed meanwhile."""
        suggest, documents = self.server.suggest, self.server.documents

        async def watched(uri: str, cursor: Cursor, budget_ms: float | None = None) -> Suggestion:
            document = documents.get(uri)
            version = document.version if document else None
            suggestion = await suggest(uri, cursor, budget_ms)
            if suggestion.text:
                now = documents.get(uri)
                self.num["stale"] += now is not document or now is None or now.version != version
            return suggestion

        self.server.suggest = watched  # type: ignore[method-assign]


@contextlib.contextmanager
def naming(seed: int, session: EditSession) -> Iterator[None]:
    """A failure tells where it was."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, version {session.screen.version}: {error}") from error


def total(sessions: list[EditSession]) -> Counter[str]:
    """What was counted in all."""
    return sum((session.num for session in sessions), Counter())
