"""What a run found, for programs (JSON lines), for ``git apply`` and ``patch`` (a diff) and for people (a table).

Everything is in the order of the fills, and says nothing that differs between two runs of the same work.
"""

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

from lsp_server.bulk.files import Splice, by_file, read_original, replace_file, replacement, splices
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.holes import SourceText
from lsp_server.errors import FileConflictError, OutputError

_NUM_CONTEXT_LINES = 3
_NO_FINAL_NEWLINE = "\n\\ No newline at end of file\n"
_MUST_BE_QUOTED = re.compile(r'[\x00-\x1f"\\\x7f\udc80-\udcff]| \Z')


@dataclass(frozen=True)
class Diff:
    """A unified diff, and the files that are not in it, one line each."""

    content: bytes
    problems: tuple[str, ...] = ()


def jsonl(fills: Iterable[Fill]) -> bytes:
    """One object for each hole. Lines and columns count from 1, columns in characters; ``text`` is the replacement."""
    return b"".join(json.dumps(_as_object(fill)).encode() + b"\n" for fill in fills)


def unified_diff(fills: Iterable[Fill], read: Callable[[SourceText], bytes] = read_original) -> Diff:
    """From the files as they were selected to the files with their good fills.

    ``read`` gives a file's bytes; once fills have been applied, that is ``Backups.original``.
    """
    pieces: list[str] = []
    problems: list[str] = []
    for of_file in by_file(fills):
        source = of_file[0].hole.source
        try:
            original = read(source).decode()
        except FileConflictError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"cannot read {source.relative}: {error.strerror or error}")
        else:
            pieces += _diff_of_file(source.relative, original, splices(original, of_file))
    return Diff("".join(pieces).encode("utf-8"), tuple(problems))


def summary(fills: Sequence[Fill]) -> Group:
    """How many of each kind ended how, and why those failed that did."""
    counts = Counter((fill.hole.kind, fill.state) for fill in fills)
    table = Table("kind", *(state.value for state in FillState), "all")
    for kind in dict.fromkeys(fill.hole.kind for fill in fills):
        numbers = [counts[kind, state] for state in FillState]
        table.add_row(kind, *map(str, [*numbers, sum(numbers)]))
    totals = [sum(fill.state is state for fill in fills) for state in FillState]
    table.add_section()
    table.add_row("all", *map(str, [*totals, len(fills)]))
    reasons = Counter(fill.reason for fill in fills if fill.state is not FillState.FILLED)
    return Group(table, *(Text(f"{count} × {reason}") for reason, count in reasons.most_common()))


def write_out(path: Path, content: bytes) -> None:
    """Write a result where ``--out`` says, at once. Raises ``OutputError``."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a device or a pipe takes it, but must not be replaced by a file
        else:
            replace_file(path.resolve(), content)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; name another file with --out") from None


def _as_object(fill: Fill) -> dict[str, object]:
    hole = fill.hole
    before_end = hole.source.text[: hole.end]
    return {
        "file": hole.source.relative,
        "line": hole.line,
        "column": hole.column,
        "end_line": before_end.count("\n") + 1,
        "end_column": len(before_end) - before_end.rfind("\n"),
        "kind": hole.kind,
        "name": hole.name,
        "state": fill.state.value,
        "text": replacement(fill) if fill.state is FillState.FILLED else "",
        "reason": fill.reason,
        # not how many came from the cache: that depends on what was computed in the same run
        "usage": {"prompt_tokens": fill.usage.prompt_tokens, "generated_tokens": fill.usage.generated_tokens},
        "attempts": fill.num_attempts,
        "key": fill.key,
    }


@dataclass(frozen=True)
class _Change:
    """Lines ``start`` to ``end`` of a file, counted from 0, become ``new``."""

    start: int
    end: int
    new: list[str]


def _diff_of_file(relative: str, original: str, of_file: Sequence[Splice]) -> list[str]:
    lines = _lines(original)
    changes = [change for change in _changes(original, lines, of_file) if change.new or change.start < change.end]
    if not changes:
        return []
    old, new = _quoted(f"a/{relative}"), _quoted(f"b/{relative}")
    end = "\t\n" if " " in relative else "\n"  # where a name with spaces ends
    pieces = [f"diff --git {old} {new}\n", f"--- {old}{end}", f"+++ {new}{end}"]
    num_more = 0  # lines that the new file has more than the old one up to here
    for hunk in _hunks(changes):
        pieces += _hunk_lines(lines, hunk, num_more)
        num_more += _num_more(hunk)
    return pieces


def _changes(original: str, lines: list[str], of_file: Sequence[Splice]) -> Iterator[_Change]:
    """Whole lines, from top to bottom. Known from the splices: finding them by comparison can take minutes."""
    starts = [0, *accumulate(map(len, lines))]
    last = len(lines) - (not original.endswith("\n")) if lines else 0

    def line_at(offset: int) -> int:
        return min(bisect_right(starts, offset) - 1, last)

    groups: list[list[Splice]] = []
    for splice in of_file:
        if groups and line_at(splice.start) <= line_at(groups[-1][-1].end):
            groups[-1].append(splice)
        else:
            groups.append([splice])
    for group in groups:
        start, end = line_at(group[0].start), min(line_at(group[-1].end) + 1, len(lines))
        pieces, done = [], starts[start]
        for splice in group:
            pieces += [original[done : splice.start], splice.text]
            done = splice.end
        yield _trimmed(lines, start, end, _lines("".join([*pieces, original[done : starts[end]]])))


def _trimmed(lines: list[str], start: int, end: int, new: list[str]) -> _Change:
    """The change without the lines at both ends that stay."""
    while start < end and new and lines[start] == new[0]:
        start, new = start + 1, new[1:]
    while start < end and new and lines[end - 1] == new[-1]:
        end, new = end - 1, new[:-1]
    return _Change(start, end, new)


def _hunks(changes: Iterable[_Change]) -> list[list[_Change]]:
    """Changes together whose context would touch."""
    hunks: list[list[_Change]] = []
    for change in changes:
        if hunks and change.start - hunks[-1][-1].end <= 2 * _NUM_CONTEXT_LINES:
            hunks[-1].append(change)
        else:
            hunks.append([change])
    return hunks


def _hunk_lines(lines: list[str], hunk: list[_Change], num_more: int) -> Iterator[str]:
    start, end = max(hunk[0].start - _NUM_CONTEXT_LINES, 0), min(hunk[-1].end + _NUM_CONTEXT_LINES, len(lines))
    num_old = end - start
    num_new = num_old + _num_more(hunk)
    # an empty side is named by the line before it
    yield f"@@ -{start + (num_old > 0)},{num_old} +{start + num_more + (num_new > 0)},{num_new} @@\n"
    for change in hunk:
        yield from _marked(" ", lines[start : change.start])
        yield from _marked("-", lines[change.start : change.end])
        yield from _marked("+", change.new)
        start = change.end
    yield from _marked(" ", lines[start:end])


def _num_more(hunk: Iterable[_Change]) -> int:
    return sum(len(change.new) - (change.end - change.start) for change in hunk)


def _marked(mark: str, lines: Iterable[str]) -> Iterator[str]:
    return (mark + line + ("" if line.endswith("\n") else _NO_FINAL_NEWLINE) for line in lines)


def _lines(text: str) -> list[str]:
    """With their ends; only a line feed ends a line, as for ``git`` and ``patch``."""
    *whole, last = text.split("\n")
    return [line + "\n" for line in whole] + ([last] if last else [])


def _quoted(name: str) -> str:
    """As in C where ``git`` does that too, except that letters of all scripts stay as they are."""
    if not _MUST_BE_QUOTED.search(name):
        return name
    return '"' + _MUST_BE_QUOTED.sub(_escaped, name) + '"'


def _escaped(match: re.Match[str]) -> str:
    if match[0] in '"\\':
        return "\\" + match[0]
    return "".join(f"\\{byte:03o}" for byte in match[0].encode("utf-8", "surrogateescape"))
