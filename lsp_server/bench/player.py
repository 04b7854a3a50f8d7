"""Plays sessions against the real language server, open loop: a key comes when it is due, whatever the server does.

It measures on this side of the connection; what the server says of the same requests is laid beside that. All times
are milliseconds.
"""

import asyncio
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lsprotocol import types

from lsp_server.bench.page import KeyKind
from lsp_server.bench.sessions import TypingSession
from lsp_server.bench.typist import Typist
from lsp_server.editor import Editor, Question, suggested_text

_READ_MS = 1000.0
"""Between the opening of a file and the first key."""
_ARRIVED_SHARE = 0.7
"""Of the pause before a key in another place the cursor has been there for so much,"""
_CURSOR_REST_MS = 200.0
"""and after so long an editor with an extension of ours tells where it is."""
_LAST_ANSWER_TIMEOUT_S = 20.0
_CANCELLED = "cancelled"
_MAX_UNREAD = 8
"""So many answers later the server is asked for its records, of which it keeps about twenty."""


@dataclass(eq=False)
class Keystroke:
    """A key and what came of its request."""

    session: int
    kind: KeyKind
    line: tuple[int, int]
    """Number of the blank, and of the line in it."""
    is_same_line: bool
    """The key before was on this line too."""
    due_ms: float
    """Latencies count from here."""
    next_due_ms: float | None = None
    """When the next key was due; None for the last of a session."""
    answered_ms: float | None = None
    """None if it was cancelled, since the next key came before the answer."""
    has_failed: bool = False
    """The answer was an error."""
    text: str = ""
    """What was suggested."""
    is_right: bool = False
    """That says nothing but what should come next."""
    record: dict[str, Any] = field(default_factory=dict)
    """What the server says of the request: source, tokens, reason; empty where that is not known."""

    @property
    def latency_ms(self) -> float | None:
        """From when the key was due to the answer."""
        return None if self.answered_ms is None else self.answered_ms - self.due_ms

    @property
    def is_in_time(self) -> bool:
        """Answered before the next key was due."""
        return self.answered_ms is not None and (self.next_due_ms is None or self.answered_ms <= self.next_due_ms)


class ServerRecords:
    """Puts together the server's lists of its last requests, and lays them beside the keystrokes.

    The server makes a record just before it answers, so both are in the same order. Cancelled requests do not count
    on either side: one that was cancelled before it began has left no record.
    """

    def __init__(self) -> None:
        self._answered: list[Keystroke] = []
        self._records: list[dict[str, Any]] = []

    def add_answer(self, keystroke: Keystroke) -> None:
        """An answer has come that is no error."""
        self._answered.append(keystroke)

    def read(self, recent: list[dict[str, Any]]) -> None:
        """Take the server's list: the records of all answers so far at its end, or of one more."""
        recent = [record for record in recent if record["outcome"] != _CANCELLED]
        num_new, num_unread = len(recent), max(0, len(self._answered) - len(self._records))
        for number in range(min(num_unread, len(recent)), len(recent)):
            if self._records[number - len(recent) :] == recent[: len(recent) - number]:
                num_new = number
                break
        self._records += recent[len(recent) - num_new :]

    def lay_beside(self) -> bool:
        """Give each keystroke its record; False, and nothing is given, when they do not match in number."""
        if len(self._answered) != len(self._records):
            return False
        for keystroke, record in zip(self._answered, self._records, strict=True):
            keystroke.record = record
        return True


class Player:
    """Plays sessions one after the other, with one editor."""

    def __init__(self, editor: Editor) -> None:
        self.keystrokes: list[Keystroke] = []
        self.num_saved_chars: list[int] = []
        """Of each session."""
        self.records = ServerRecords()
        self._editor = editor
        self._newest: Keystroke | None = None
        self._question: Question | None = None
        self._num_unread = 0
        """Answers of any kind since the server was asked for its records."""
        self._status: Future[Any] | None = None

    async def play(self, session: TypingSession) -> None:
        """Type a session to its end."""
        number, typist = len(self.num_saved_chars), Typist(session)
        uri = (Path.cwd() / session.file.name).as_uri()
        self._editor.open(uri, session.file.language_id, typist.page.text)
        due_ms, self._newest = _now_ms() + _READ_MS, None
        while not typist.is_done:
            pause_ms = typist.pause_ms()
            due_ms += pause_ms
            if (text_before := typist.text_before_next) is not None:
                await asyncio.sleep((due_ms - pause_ms * _ARRIVED_SHARE + _CURSOR_REST_MS - _now_ms()) / 1000)
                self._editor.move_cursor(uri, position_of(text_before))
            await asyncio.sleep((due_ms - _now_ms()) / 1000)
            self._strike(uri, typist, number, due_ms)
            if self._num_unread >= _MAX_UNREAD:
                self._ask_status()
        await self._wait_for_last_answer()
        self._editor.close_document(uri)
        await self._read_status()
        self.num_saved_chars.append(typist.num_saved_chars)

    def _strike(self, uri: str, typist: Typist, session: int, due_ms: float) -> None:
        """Press a key: the change, the end of the request before, and the new request, all at once."""
        text, last = typist.page.text, self._newest
        stroke = typist.strike(due_ms)
        line = (typist.blank_number, typist.line_number)
        is_same_line = last is not None and not stroke.is_jump and last.line == line
        start, end = position_of(text[: stroke.change.start]), position_of(text[: stroke.change.end])
        self._editor.change(uri, start, end, stroke.change.text)
        if last is not None:
            last.next_due_ms = due_ms
            if self._question is not None and not self._question.answer.done():
                self._editor.cancel(self._question)
        self._newest = Keystroke(session, stroke.key.kind, line, is_same_line, due_ms)
        self.keystrokes.append(self._newest)
        self._question = self._editor.ask(uri, position_of(typist.page.text_before))
        self._question.answer.add_done_callback(partial(self._on_answer, self._newest, typist))

    def _on_answer(self, keystroke: Keystroke, typist: Typist, answer: "Future[Any]") -> None:
        now_ms, has_failed = _now_ms(), answer.exception() is not None
        self._num_unread += 1
        if not has_failed:
            self.records.add_answer(keystroke)
        if keystroke is not self._newest:
            return  # cancelled: nobody sees what it says
        if has_failed:
            keystroke.has_failed = True
            return
        keystroke.answered_ms, keystroke.text = now_ms, suggested_text(answer.result())
        keystroke.is_right = typist.is_right(keystroke.text)
        typist.show(keystroke.text, now_ms)

    async def _wait_for_last_answer(self) -> None:
        if self._question is not None:
            await asyncio.wait([asyncio.wrap_future(self._question.answer)], timeout=_LAST_ANSWER_TIMEOUT_S)

    async def _read_status(self) -> None:
        """Until no record of an answer is left out."""
        for _ in range(2):  # one may be on its way, and have been asked for too early
            self._ask_status()
            assert self._status is not None
            await asyncio.wait([asyncio.wrap_future(self._status)])

    def _ask_status(self) -> None:
        if self._status is None or self._status.done():
            self._num_unread = 0
            self._status = self._editor.ask_status().answer
            self._status.add_done_callback(self._on_status)

    def _on_status(self, answer: "Future[Any]") -> None:
        if answer.exception() is None:
            self.records.read(list(plain(answer.result()).get("recent") or ()))


def position_of(text: str) -> types.Position:
    """Where a text ends: its line, and the column in UTF-16."""
    last = text[text.rfind("\n") + 1 :]
    return types.Position(text.count("\n"), len(last.encode("utf-16-le", "surrogatepass")) // 2)


def plain(value: Any) -> Any:
    """What pygls makes of JSON objects without a type, as dictionaries again."""
    if hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def _now_ms() -> float:
    return time.perf_counter() * 1000
