"""Who types: which key comes next, and how long after the one before. Pure; no clock, no server.

Pauses, typos and the will to accept depend on the place alone, so that one who gets other suggestions types alike.
"""

import math
import random
from collections import Counter
from dataclasses import dataclass

from lsp_server.bench.page import INDENT, Change, Field, Key, KeyKind, Page
from lsp_server.bench.sessions import TypingSession, Visit

_MEDIAN_PAUSE_MS = 165.0
_SPREAD = 0.4
"""Standard deviation of the logarithm; with the median above a key comes 180 ms after the last on average."""
_WORD_END, _LINE_END, _JUMP = 1.4, 2.5, 5.0
"""How many times as long after a word, after a line, and when the cursor has gone elsewhere."""
_MIN_PAUSE_MS, _MAX_PAUSE_MS = 40.0, 3000.0
_TYPO_SHARE = 0.025
_MEDIAN_READING_MS = 350.0
_ACCEPTING_SHARE = 0.5
"""Of the lines: on the others suggestions are not taken, however right."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Stroke:
    """A key and what it does."""

    key: Key
    change: Change
    is_jump: bool
    """The first after the cursor went elsewhere."""


class Typist:
    """One session being typed: until ``is_done``, wait ``pause_ms``, then ``strike``; ``show`` what is suggested."""

    def __init__(self, session: TypingSession) -> None:
        self.page = Page(session)
        self.num_saved_chars = 0
        """Accepted, less a key for each time."""
        self._session = session
        self._visits = list(session.visits)
        self._is_first = True
        self._blind = ""
        """What is still typed before a typo is seen."""
        self._num_keys_at: Counter[tuple[int, int]] = Counter()
        self._ghost = ""
        self._ghost_since_ms = 0.0
        self.page.go_to(self.blank_number)
        self._skip_what_is_there()

    @property
    def line_number(self) -> int:
        """Of the cursor in its blank."""
        return self.page.field.before.count("\n")

    @property
    def blank_number(self) -> int:
        """The blank that the cursor is in."""
        return self._visits[0].blank

    @property
    def is_done(self) -> bool:
        """All visits are over."""
        return len(self._visits) == 1 and self._is_visit_over()

    @property
    def text_before_next(self) -> str | None:
        """All text before the cursor in the place where it goes before the next key; None if it stays."""
        if self._is_visit_over():
            return self.page.text_before_in(self._visits[1].blank)
        return self.page.text_before if self._is_first else None

    def pause_ms(self) -> float:
        """From the last key to the next."""
        draw = self._rng("pause").lognormvariate(math.log(_MEDIAN_PAUSE_MS), _SPREAD)
        return min(max(draw * self._slowness(), _MIN_PAUSE_MS), _MAX_PAUSE_MS)

    def strike(self, now_ms: float) -> Stroke:
        """Press the next key at a time, in the next place if this one is done with. Only while not ``is_done``."""
        is_jump = self._is_first or self._is_visit_over()
        if self._is_visit_over():
            self._go_on()
        key = self._next_key(now_ms)
        self._num_keys_at[self._place()] += 1
        self._is_first = False
        before = self.page.field.before
        change = self.page.press(key)
        if key.kind is KeyKind.ACCEPT:
            self.num_saved_chars += len(key.text) - 1
        self._carry_ghost(before)
        self._skip_what_is_there()
        return Stroke(key, change, is_jump)

    def show(self, text: str, now_ms: float) -> None:
        """A suggestion for the cursor as it is; empty takes away what is shown."""
        if text != self._ghost:
            self._ghost, self._ghost_since_ms = text, now_ms

    def is_right(self, text: str) -> bool:
        """Whether a suggestion for the cursor as it is says nothing but what should come."""
        field = self.page.field
        return bool(text.strip()) and not self._blind and field.is_right and field.rest.startswith(text)

    def _go_on(self) -> None:
        """To the next place; until then the cursor is in the old one, and what is suggested is for that."""
        self._visits.pop(0)
        self.page.go_to(self.blank_number)
        self._ghost = ""

    def _skip_what_is_there(self) -> None:
        """Visits for which nothing is left to do are left out, once the present one is over."""
        while len(self._visits) > 1 and self._is_over(self._visits[0]) and self._is_over(self._visits[1]):
            del self._visits[1]

    def _is_visit_over(self) -> bool:
        return not self._blind and self._is_over(self._visits[0])

    def _is_over(self, visit: Visit) -> bool:
        field = self.page.fields[visit.blank]
        if not field.is_right or len(field.before) < visit.num_chars:
            return False
        return bool(field.rest) or not field.closers

    def _next_key(self, now_ms: float) -> Key:
        field = self.page.field
        if self._blind:
            char, self._blind = self._blind[0], self._blind[1:]
            return Key(KeyKind.CHAR, char)
        if not field.is_right:
            return Key(KeyKind.ENTER if _is_blank_line(field) else KeyKind.BACKSPACE)
        if not field.rest:
            return Key(KeyKind.DELETE)
        if self._accepts(now_ms):
            return Key(KeyKind.ACCEPT, self._ghost)
        if field.rest[0] == "\n":
            return Key(KeyKind.ENTER)
        if field.rest.startswith(INDENT) and "\n" in field.before and not field.line.strip():
            return Key(KeyKind.INDENT)
        return Key(KeyKind.CHAR, self._typo() or field.rest[0])

    def _accepts(self, now_ms: float) -> bool:
        """Whether the suggestion has been read, is right, and saves something."""
        line = random.Random(f"accept {self._session.seed} {self.blank_number} {self.line_number}")
        is_accepting = line.random() < _ACCEPTING_SHARE
        reading_ms = line.lognormvariate(math.log(_MEDIAN_READING_MS), _SPREAD)
        is_read = now_ms - self._ghost_since_ms >= reading_ms
        return is_accepting and is_read and len(self._ghost.strip()) > 1 and self.is_right(self._ghost)

    def _typo(self) -> str:
        """A wrong letter, perhaps with the right one behind it, now and then; never twice at the same place."""
        rest, rng = self.page.field.rest, self._rng("typo")
        is_first = not self._num_keys_at[self._place()]
        if not (is_first and rest[0].isascii() and rest[0].isalpha() and rng.random() < _TYPO_SHARE):
            return ""
        self._blind = rest[1] if rest[1:2].isalpha() and rng.random() < 0.5 else ""
        return rng.choice(_LETTERS.replace(rest[0], ""))

    def _carry_ghost(self, before: str) -> None:
        """Editors go on showing what is left of a suggestion as long as it is typed."""
        after = self.page.field.before
        typed = after[len(before) :] if after.startswith(before) else ""
        self._ghost = self._ghost[len(typed) :] if typed and self._ghost.startswith(typed) else ""

    def _slowness(self) -> float:
        last = self.page.field.before[-1:]
        if self._is_first or self._is_visit_over():
            return _JUMP
        if last.isspace() and not self.page.field.line.strip():
            return _LINE_END if self.page.field.is_auto_indented else 1.0
        return 1.0 if last.isalnum() or last == "_" else _WORD_END

    def _place(self) -> tuple[int, int]:
        return self.blank_number, len(self.page.field.before)

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{what} {self._session.seed} {self._place()} {self._num_keys_at[self._place()]}")


def _is_blank_line(field: Field) -> bool:
    """Whether a line that the editor has indented should be empty: Enter takes the indentation back."""
    start = len(field.before) - len(field.line)
    is_wanted = field.target.startswith(field.before[:start]) and field.target[start : start + 1] == "\n"
    return field.is_auto_indented and not field.closers and is_wanted
