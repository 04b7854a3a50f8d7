"""Somebody who types into a screen, by a seed: what is suggested, something else, and all that editing is."""

import random
import re

from tests.support.screen import Screen

_CLOSED = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'"}


class Typist:
    """``press`` is one thing done at a keyboard. ``ghost`` is the suggestion that is on the screen meanwhile."""

    def __init__(self, screen: Screen, seed: int, snippets: tuple[str, ...]) -> None:
        """``snippets`` are what is typed and pasted when it is not the suggestion."""
        self.screen = screen
        self.rng = random.Random(seed)
        self._snippets = snippets
        self._keys = {
            self._type_on: 26,
            self._accept: 4,
            self._accept_word: 6,
            self._accept_line: 5,
            self._type_other: 10,
            screen.backspace: 8,
            self._delete_more: 3,
            screen.enter: 7,
            self._open_bracket: 6,
            self._jump: 4,
            self._edit_before: 3,
            self._edit_after: 3,
            screen.undo: 5,
            self._paste: 3,
        }
        self.ghost = ""

    def press(self, ghost: str) -> str:
        """Do one thing; returns its name."""
        self.ghost = ghost
        (key,) = self.rng.choices(list(self._keys), list(self._keys.values()))
        key()
        return key.__name__

    def _type_on(self) -> None:
        """The next characters of the suggestion."""
        text = self.ghost[: self.rng.choice((1, 1, 1, 1, 2, 3))]
        self.screen.accept(text) if text else self._type_other()

    def _type_other(self) -> None:
        char = self.rng.choice(self.rng.choice(self._snippets))
        if self.screen.text[self.screen.cursor : self.screen.cursor + 1] == char and char in _CLOSED.values():
            self.screen.jump(self.screen.cursor + 1)  # editors type over what they have closed
        else:
            self.screen.accept(char)

    def _accept(self) -> None:
        self.screen.accept(self.ghost)

    def _accept_word(self) -> None:
        words = re.findall(r"\A\s*(?:\w+|[^\w\s]+)", self.ghost)
        self.screen.accept(words[0] if words else "")

    def _accept_line(self) -> None:
        lines = self.ghost.splitlines(keepends=True)
        self.screen.accept(lines[0] if lines else "")

    def _delete_more(self) -> None:
        self.screen.backspace(self.rng.randint(2, 7))

    def _open_bracket(self) -> None:
        opener = self.rng.choice(list(_CLOSED))
        self.screen.type(opener, closed=_CLOSED[opener])

    def _jump(self) -> None:
        """Mostly to the end of a line, where one goes on writing."""
        at = self.rng.randint(0, len(self.screen.text))
        line_end = self.screen.text.find("\n", at)
        self.screen.jump(line_end if line_end >= 0 and self.rng.random() < 0.8 else at)

    def _edit_before(self) -> None:
        line_start = self.screen.text.rfind("\n", 0, self.screen.cursor) + 1
        self._edit(self.rng.randint(0, line_start), line_start)

    def _edit_after(self) -> None:
        end = len(self.screen.text)
        self._edit(self.rng.randint(min(self.screen.cursor + 1, end), end), end)

    def _edit(self, start: int, limit: int) -> None:
        end = min(limit, start + self.rng.choice((0, 1, 4)))
        self.screen.replace(start, end, self.rng.choice(("", "y", "\n", "x = 1\n")))

    def _paste(self) -> None:
        self.screen.accept(self.rng.choice(self._snippets))
