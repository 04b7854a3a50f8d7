"""Places that a person lists in a file: one JSON object a line.

``{"file": "src/app.py", "line": 12, "column": 5}`` is the least: the file relative to the workspace, the place before
that character; lines and columns count from 1, columns in characters. ``end_column`` and ``end_line`` (the same line if
not given) say what is replaced; ``multiline`` whether several lines may be filled in (if not given: as in an editor,
where a block can begin); ``max_tokens`` how much. The kind that is registered finds nothing: the selection binds the
places to it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lsp_server.bulk.holes import FindHoles, Hole, HoleKind, KindOptions, SourceText, register
from lsp_server.bulk.kinds.layout import indentation, num_columns
from lsp_server.completion.decide import Shape, shape_of
from lsp_server.completion.request import Situation
from lsp_server.errors import UsageError

_NUMBERS = ("line", "column", "end_line", "end_column", "max_tokens")
_KEYS = ("file", *_NUMBERS, "multiline")


@dataclass(frozen=True)
class Cursor:
    """One line of the file."""

    where: str
    """The line itself, as ``cursors.jsonl:3``."""
    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    max_tokens: int | None
    is_multiline: bool | None


def read_cursors(path: Path) -> list[Cursor]:
    """All places of a file. Raises ``UsageError`` that names the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8; it should have a JSON object a line") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    return [_cursor(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]


def bound_to(cursors: Mapping[str, Sequence[Cursor]]) -> FindHoles:
    """Finds the holes of a file at its places, given by ``SourceText.relative``.

    What it returns raises ``UsageError`` for a place outside its file, and for two that overlap.
    """

    def find(source: SourceText, options: KindOptions) -> Iterator[Hole]:
        here = cursors.get(source.relative, ())
        starts = _line_starts(source.text) if here else []
        found = [(_hole(cursor, source, starts, options), cursor) for cursor in here]
        found.sort(key=lambda pair: (pair[0].start, pair[0].end))
        for (hole, cursor), (other, other_cursor) in pairwise(found):
            if other.start < hole.end or (other.start, other.end) == (hole.start, hole.end):
                raise UsageError(f"{other_cursor.where}: is the same place as {cursor.where}, or overlaps it")
        yield from (hole for hole, _ in found)

    return find


def _cursor(line: str, where: str) -> Cursor:
    try:
        fields: Any = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: is not JSON; write " + _EXAMPLE) from None
    if not isinstance(fields, dict):
        raise UsageError(f"{where}: is not a JSON object; write " + _EXAMPLE)
    if unknown := sorted(set(fields) - set(_KEYS)):
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(_KEYS)}")
    if missing := [key for key in ("file", "line", "column") if key not in fields]:
        raise UsageError(f"{where}: {missing[0]!r} is missing; write " + _EXAMPLE)
    _check(fields, "file", lambda value: isinstance(value, str) and value != "", "a path", where)
    for key in _NUMBERS:
        _check(fields, key, lambda value: type(value) is int and value >= 1, "a whole number from 1", where)
    _check(fields, "multiline", lambda value: isinstance(value, bool), "true or false", where)
    if "end_line" in fields and "end_column" not in fields:
        raise UsageError(f"{where}: 'end_line' is given without 'end_column'")
    place = {"end_line": fields["line"], "end_column": fields["column"]} | fields
    if (place["end_line"], place["end_column"]) < (place["line"], place["column"]):
        raise UsageError(f"{where}: the end is before the start")
    return Cursor(
        where=where,
        file=place["file"],
        line=place["line"],
        column=place["column"],
        end_line=place["end_line"],
        end_column=place["end_column"],
        max_tokens=place.get("max_tokens"),
        is_multiline=place.get("multiline"),
    )


_EXAMPLE = '{"file": "src/app.py", "line": 12, "column": 5}'


def _check(fields: dict[str, Any], key: str, is_good: Callable[[Any], bool], what: str, where: str) -> None:
    if key in fields and not is_good(fields[key]):
        raise UsageError(f"{where}: {key!r} is not {what}")


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _hole(cursor: Cursor, source: SourceText, starts: list[int], options: KindOptions) -> Hole:
    start = _offset(cursor, cursor.line, cursor.column, source, starts)
    end = _offset(cursor, cursor.end_line, cursor.end_column, source, starts)
    shape = _shape(cursor, source.text, start, end)
    return Hole(
        source=source,
        kind="cursors",
        start=start,
        end=end,
        is_block=shape.is_block,
        min_indent=shape.min_indent,
        max_tokens=cursor.max_tokens or options.max_tokens,
        name=Path(cursor.where).name,
    )


def _offset(cursor: Cursor, line: int, column: int, source: SourceText, starts: list[int]) -> int:
    num_lines = len(starts) - 1
    if line > num_lines:
        raise UsageError(f"{cursor.where}: line {line} is outside {source.relative}; it has lines 1 to {num_lines}")
    num_columns = starts[line] - starts[line - 1]
    if column > num_columns:
        reason = f"column {column} is outside line {line} of {source.relative}; it has columns 1 to {num_columns}"
        raise UsageError(f"{cursor.where}: {reason}")
    return starts[line - 1] + column - 1


def _shape(cursor: Cursor, text: str, start: int, end: int) -> Shape:
    """What an editor would do there, unless the person says."""
    shape = shape_of(Situation(text[:start], text[end:]), "auto")
    if "\n" in text[start:end] and not shape.is_block:
        shape = Shape(is_block=True, min_indent=num_columns(indentation(text, start)))
    if cursor.is_multiline is None or cursor.is_multiline == shape.is_block:
        return shape
    return Shape(cursor.is_multiline, num_columns(indentation(text, start)) if cursor.is_multiline else 0)


register(HoleKind("cursors", "the places that a file lists", bound_to({})))
