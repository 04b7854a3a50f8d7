"""A file while it is typed into, with what editors do by themselves: brackets close, new lines are indented. Pure.

Each key returns the one change of the text that an editor would report.
"""

from dataclasses import dataclass
from enum import Enum

from lsp_server.bench.sessions import TypingSession

INDENT = "    "
_CLOSER_OF = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'"}
_QUOTES = "\"'"
_OPENERS = ("(", "[", "{", ":")


class KeyKind(str, Enum):
    """What is pressed."""

    CHAR = "char"
    ENTER = "enter"
    INDENT = "indent"
    """Tab at the beginning of a line."""
    BACKSPACE = "backspace"
    DELETE = "delete"
    ACCEPT = "accept"
    """Tab on a suggestion."""


@dataclass(frozen=True)
class Key:
    """A key, and the character or the accepted text."""

    kind: KeyKind
    text: str = ""


@dataclass(frozen=True)
class Change:
    """A replacement in the text as it was before; offsets in characters."""

    start: int
    end: int
    text: str


@dataclass
class Field:
    """A blank while it is filled."""

    target: str
    before: str = ""
    """What stands before the cursor."""
    closers: str = ""
    """Behind the cursor: what the editor has put there; typing it moves over it."""
    is_auto_indented: bool = False
    """The cursor's line is nothing but an indentation that the editor has put there."""

    @property
    def is_right(self) -> bool:
        """What stands before the cursor is how the blank begins."""
        return self.target.startswith(self.before)

    @property
    def rest(self) -> str:
        """What should come next, as long as ``is_right``."""
        return self.target[len(self.before) :]

    @property
    def line(self) -> str:
        """The part of the cursor's line before the cursor that is in this field."""
        return self.before[self.before.rfind("\n") + 1 :]


class Page:
    """The text of one session; the cursor is in one of its fields."""

    def __init__(self, session: TypingSession) -> None:
        self._fixed = session.fixed
        self.fields = [Field(blank.text) for blank in session.blanks]
        self._current = 0

    @property
    def field(self) -> Field:
        """The one that the cursor is in."""
        return self.fields[self._current]

    @property
    def text(self) -> str:
        """All of it."""
        return self.text_before + self.field.closers + self._text_after_field()

    @property
    def text_before(self) -> str:
        """All text before the cursor."""
        return self.text_before_in(self._current)

    def text_before_in(self, number: int) -> str:
        """The same, if the cursor were in another field."""
        parts = [self._fixed[0]]
        for field, fixed in zip(self.fields[:number], self._fixed[1:], strict=False):
            parts += (field.before, field.closers, fixed)
        return "".join(parts) + self.fields[number].before

    def go_to(self, number: int) -> None:
        """Put the cursor where a field was left."""
        self._current = number
        self.field.is_auto_indented = False

    def press(self, key: Key) -> Change:
        """Do what the key does."""
        offset = len(self.text_before)
        return _ACTIONS[key.kind](self, key.text, offset)

    def _text_after_field(self) -> str:
        parts = [self._fixed[self._current + 1]]
        for number in range(self._current + 1, len(self.fields)):
            field = self.fields[number]
            parts += (field.before, field.closers, self._fixed[number + 1])
        return "".join(parts)

    def _type(self, char: str, offset: int) -> Change:
        field = self.field
        is_over = field.closers.startswith(char)
        closer = "" if is_over or not self._closes(char) else _CLOSER_OF[char]
        field.closers = field.closers[1:] if is_over else closer + field.closers
        self._insert(char)
        return Change(offset, offset + is_over, char + closer)

    def _closes(self, char: str) -> bool:
        """Whether the editor puts a closer behind: not before a word, and quotes not behind one or another quote."""
        before, after = self.text_before[-1:], (self.field.closers + self._text_after_field())[:1]
        is_free = not after or after.isspace() or after in _CLOSER_OF.values()
        is_quote_apart = not (before.isalnum() or before in ("_", "\\", *_QUOTES))
        return char in _CLOSER_OF and is_free and (char not in _QUOTES or is_quote_apart)

    def _enter(self, _: str, offset: int) -> Change:
        """A new line with the indentation of the old one, deeper after an opener; an automatic one is taken back."""
        field, line = self.field, self.text_before.rpartition("\n")[2]
        num_removed = len(field.line) if field.is_auto_indented else 0
        indent = line[: len(line) - len(line.lstrip())] + INDENT * line.rstrip().endswith(_OPENERS)
        field.before = field.before[: len(field.before) - num_removed] + "\n" + indent
        field.is_auto_indented = True
        return Change(offset - num_removed, offset, "\n" + indent)

    def _indent(self, _: str, offset: int) -> Change:
        self._insert(INDENT)
        return Change(offset, offset, INDENT)

    def _backspace(self, _: str, offset: int) -> Change:
        """One character, or an indentation's last step."""
        field, line = self.field, self.field.line
        num_removed = (len(line) - 1) % len(INDENT) + 1 if line and not line.strip(" ") else 1
        field.before = field.before[:-num_removed]
        field.is_auto_indented = False
        return Change(offset - num_removed, offset, "")

    def _delete(self, _: str, offset: int) -> Change:
        self.field.closers = self.field.closers[1:]
        return Change(offset, offset + 1, "")

    def _accept(self, text: str, offset: int) -> Change:
        self._insert(text)
        return Change(offset, offset, text)

    def _insert(self, text: str) -> None:
        self.field.before += text
        self.field.is_auto_indented = False


_ACTIONS = {
    KeyKind.CHAR: Page._type,
    KeyKind.ENTER: Page._enter,
    KeyKind.INDENT: Page._indent,
    KeyKind.BACKSPACE: Page._backspace,
    KeyKind.DELETE: Page._delete,
    KeyKind.ACCEPT: Page._accept,
}
