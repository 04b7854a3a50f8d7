"""The open documents as the editor has them: edits in LSP positions in, text around a cursor out.

Lines end at ``\\n``, ``\\r\\n`` and ``\\r`` only, as LSP says; form feeds and Unicode separators are ordinary
characters. A document is a list of lines, so that a keystroke costs one line and not the file.
Nothing here knows pygls or a protocol type; a position is a pair of line and character.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

_EOL = re.compile(r"(\r\n|\r|\n)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CHUNK_CHARS = 1024
_MAX_LINES_AROUND = 2048  # a multiple of the prompt window's line steps, so that these stay where they are


class PositionEncoding(str, Enum):
    """What a position's ``character`` counts; the values are LSP's."""

    UTF8 = "utf-8"
    UTF16 = "utf-16"
    UTF32 = "utf-32"

    def num_units(self, text: str) -> int:
        """Length of ``text`` in this encoding's units."""
        if text.isascii() or self is PositionEncoding.UTF32:
            return len(text)
        if self is PositionEncoding.UTF16:
            return _num_utf16_units(text)
        return len(text.encode("utf-8", "surrogatepass"))

    def to_index(self, text: str, units: int) -> int:
        """Index into ``text`` of a position, rounded down inside a character; may lie beyond the end."""
        if text.isascii() or self is PositionEncoding.UTF32:
            return units
        return _index_utf16(text, units) if self is PositionEncoding.UTF16 else _index_utf8(text, units)


def _num_utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _index_utf16(text: str, units: int) -> int:
    for start in range(0, len(text), _CHUNK_CHARS):  # counting by chunks is much faster than by characters
        chunk = text[start : start + _CHUNK_CHARS]
        num_units = _num_utf16_units(chunk)
        if units < num_units:
            return start + _index_in_chunk(chunk, units)
        units -= num_units
    return len(text) + units


def _index_in_chunk(chunk: str, units: int) -> int:
    num_units = 0
    for index, char in enumerate(chunk):
        num_units += 2 if char > "\uffff" else 1
        if num_units > units:
            return index
    return len(chunk)


def _index_utf8(text: str, units: int) -> int:
    encoded = text.encode("utf-8", "surrogatepass")
    if units >= len(encoded):
        return len(text)
    while units and encoded[units] & 0xC0 == 0x80:
        units -= 1
    return len(encoded[:units].decode("utf-8", "surrogatepass"))


@dataclass(frozen=True, order=True)
class Position:
    """A place in a document, zero-based; ``character`` counts units of the negotiated encoding."""

    line: int
    character: int


@dataclass(frozen=True)
class Edit:
    """New text for ``[start, end)``, or for the whole document when there is no ``start``."""

    text: str
    start: Position | None = None
    end: Position | None = None


class Document:
    """One document. Positions out of range are clamped, as LSP asks, and are never an error."""

    def __init__(
        self,
        text: str,
        language_id: str = "",
        version: int = 0,
        encoding: PositionEncoding = PositionEncoding.UTF16,
    ) -> None:
        self.language_id = language_id
        self.version = version
        self.encoding = encoding
        self._lines = split_lines(text)
        self._changed_line = 0

    @property
    def num_lines(self) -> int:
        """Number of lines; a final line end begins one more, empty line."""
        return len(self._lines)

    def line_length(self, line: int) -> int:
        """Length of a line in characters, without its end."""
        return len(_content(self._lines[line]))

    @property
    def eol(self) -> str:
        """The document's own line end: that of its first line."""
        return self._lines[0][len(_content(self._lines[0])) :] or "\n"

    def full_text(self) -> str:
        """The text as the editor has it."""
        return "".join(self._lines)

    def change(self, edits: Iterable[Edit], version: int) -> None:
        """Apply edits in order, each to the outcome of the one before."""
        for edit in edits:
            self._apply(edit)
        self.version = version

    def excerpt(self, max_chars: int) -> str:
        """Some whole lines as a model may see them: those around the last change, or the first."""
        first = last = min(self._changed_line, len(self._lines) - 1)
        room = max_chars - len(self._lines[first])
        while room > 0 and (first > 0 or last + 1 < len(self._lines)):
            if first > 0:
                first -= 1
                room -= len(self._lines[first])
            if last + 1 < len(self._lines):
                last += 1
                room -= len(self._lines[last])
        return clean_text("".join(self._lines[first : last + 1]).removeprefix("\ufeff"))[:max_chars]

    def _apply(self, edit: Edit) -> None:
        if edit.start is None or edit.end is None:
            self._lines = split_lines(edit.text)
            return
        (first, start), (last, end) = sorted((self._locate(edit.start), self._locate(edit.end)))
        changed = self._lines[first][:start] + edit.text + self._lines[last][end:]
        if first and changed.startswith("\n") and self._lines[first - 1].endswith("\r"):
            first -= 1  # the edit has joined a "\r" and a "\n" to one line end
            changed = self._lines[first] + changed
        lines = split_lines(changed)
        if last + 1 < len(self._lines):
            lines.pop()  # the empty rest after the last line's end: the next line stands there
        self._lines[first : last + 1] = lines
        self._changed_line = first

    def around(self, position: Position) -> tuple[str, str]:
        """Text before and after a position as a model may see it, up to 2,048 whole lines each way.

        Line ends are ``\\n``, halves of surrogate pairs are replaced by U+FFFD, a byte order mark is left out.
        """
        line, index = self._locate(position)
        first = max(0, line - _MAX_LINES_AROUND) // 32 * 32
        before = "".join(self._lines[first:line]) + self._lines[line][:index]
        after = self._lines[line][index:] + "".join(self._lines[line + 1 : line + 1 + _MAX_LINES_AROUND])
        return clean_text(before.removeprefix("\ufeff")), clean_text(after)

    def clamp(self, position: Position) -> Position:
        """The nearest position that exists, rounded down."""
        line, index = self._locate(position)
        return Position(line, self.encoding.num_units(self._lines[line][:index]))

    def line_before(self, position: Position) -> str:
        """The text of the position's line before it."""
        line, index = self._locate(position)
        return self._lines[line][:index]

    def _locate(self, position: Position) -> tuple[int, int]:
        """Line and index into that line, before its line end."""
        if position.line >= len(self._lines):
            return len(self._lines) - 1, len(self._lines[-1])
        line = self._lines[position.line]
        index = self.encoding.to_index(line, position.character)
        return position.line, min(index, len(_content(line)))


class DocumentStore:
    """The open documents by URI."""

    def __init__(self) -> None:
        self.encoding = PositionEncoding.UTF16
        """Encoding of documents opened from now on."""
        self._documents: dict[str, Document] = {}

    def open(self, uri: str, text: str, language_id: str, version: int) -> None:
        """Open a document, or replace one that is open already."""
        self._documents.pop(uri, None)
        self._documents[uri] = Document(text, language_id, version, self.encoding)

    def close(self, uri: str) -> None:
        """Forget a document; one that is not open is forgotten already."""
        self._documents.pop(uri, None)

    def get(self, uri: str) -> Document | None:
        """The document, or None when it is not open."""
        return self._documents.get(uri)

    def change(self, uri: str, edits: Iterable[Edit], version: int) -> bool:
        """Edit a document; False when it is not open."""
        document = self._documents.pop(uri, None)
        if document is None:
            return False
        self._documents[uri] = document  # now the latest
        document.change(edits, version)
        return True

    def others(self, uri: str) -> list[tuple[str, Document]]:
        """All but one, with their URIs, the one that was changed or opened last at the end."""
        return [(name, document) for name, document in self._documents.items() if name != uri]


def split_lines(text: str) -> list[str]:
    """Lines with their ends; the last one has none and may be empty."""
    if "\r" not in text:  # by far the most, and much faster
        contents = text.split("\n")
        return [content + "\n" for content in contents[:-1]] + contents[-1:]
    parts = _EOL.split(text)  # content, end, content, end, …, content
    return [content + end for content, end in zip(parts[::2], parts[1::2], strict=False)] + parts[-1:]


def clean_text(text: str) -> str:
    """The text with ``\\n`` line ends and no lone surrogates; separately sent halves of a pair are joined."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii() and _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _content(line: str) -> str:
    """A line without its end."""
    if line.endswith("\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(("\n", "\r")) else line
