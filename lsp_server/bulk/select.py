"""Finding the holes of a workspace: which files, which kinds, in which order. Knows no model.

``select`` is all of it; ``list_table`` is what ``--list`` shows of the result.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from pathspec import GitIgnoreSpec

from lsp_server.bulk.grammars import language_named, language_of
from lsp_server.bulk.holes import KINDS, FindHoles, Hole, KindOptions, SourceText
from lsp_server.bulk.kinds.cursors import Cursor, bound_to, read_cursors  # the package registers all kinds
from lsp_server.bulk.sources import is_generated
from lsp_server.bulk.sources import read_source as read_source
from lsp_server.bulk.wording import counted
from lsp_server.bulk.workspace import Listing, Skipped, Workspace, ignore_spec, is_pattern
from lsp_server.errors import UnusableFileError, UsageError

ReadSource = Callable[[Path, Path, int], SourceText]
"""As ``read_source``."""


@dataclass(frozen=True)
class SelectOptions:
    """What is looked for, and where."""

    kinds: tuple[str, ...] = ("markers", "stubs")
    """Names from ``lsp_server.bulk.holes.KINDS``."""
    include: tuple[str, ...] = ()
    """Patterns as in ``.gitignore``, relative to the workspace; a file must match one, if there are any."""
    exclude: tuple[str, ...] = ()
    """Likewise; a file must match none."""
    languages: tuple[str, ...] = ()
    """Names or aliases; empty: all."""
    max_holes: int = 0
    """The first so many; 0: all."""
    cursors_file: Path | None = None
    """For the kind ``cursors``, and only for it."""
    max_file_bytes: int = 1 << 20
    kind_options: KindOptions = field(default_factory=KindOptions)


@dataclass(frozen=True)
class Selection:
    """What was found."""

    holes: tuple[Hole, ...]
    """In the order of their files' names and their places; they do not overlap."""
    num_files: int
    """How many files were looked through."""
    skipped: tuple[Skipped, ...]
    """Files and folders that could have had holes, going by their names; not what is ignored, vendored or filtered."""


def select(
    root: Path,
    paths: Sequence[Path],
    options: SelectOptions,
    say: Callable[[str], None] = lambda line: None,
    read: ReadSource = read_source,
) -> Selection:
    """The holes of ``paths``, or of the workspace ``root`` where there are none; the same each time.

    A file that is named, or has a cursor, is looked through though it is ignored, vendored or generated; never one
    that may hold secrets. ``say`` gets a line for each named file that cannot be used, and one where ``max_holes``
    ended the search. Raises ``UsageError`` for paths that are missing or outside the workspace, and for options that
    mean nothing.
    """
    return _Search(root, options, say, read).run(paths)


class _Search:
    def __init__(self, root: Path, options: SelectOptions, say: Callable[[str], None], read: ReadSource) -> None:
        self._workspace = Workspace(root)
        self._options = options
        self._say = say
        self._read_source = read
        self._finders = _finders(options)
        self._languages = {language_named(name).name for name in options.languages}
        self._included = _patterns("include", options.include) if options.include else None
        self._excluded = _patterns("exclude", options.exclude)
        self._cursors = self._read_cursors()
        self._skipped: list[Skipped] = []

    def run(self, paths: Sequence[Path]) -> Selection:
        listing = self._workspace.list_files(paths or [self._workspace.root]) if self._finders else Listing()
        self._skipped += listing.skipped
        names = sorted({*listing.files, *self._cursors})
        holes: list[Hole] = []
        num_files = 0
        for relative in filter(self._is_wanted, names):
            if 0 < self._options.max_holes <= len(holes):
                found = counted(self._options.max_holes, "holes")
                self._say(f"{found} found; {relative} and what follows is not looked at")
                break
            source = self._read(relative, is_named=relative in listing.named)
            if source is None or (self._languages and source.language not in self._languages):
                continue
            num_files += 1
            holes += self._holes_of(source, self._finders if relative in listing.files else ())
        for skipped in self._skipped:
            if skipped.relative in listing.named:
                self._say(f"{skipped.relative} {skipped.reason}; skipped")
        self._skipped.sort(key=lambda skipped: skipped.relative)
        return Selection(tuple(holes[: self._options.max_holes or None]), num_files, tuple(self._skipped))

    def _holes_of(self, source: SourceText, finders: Iterable[FindHoles]) -> Iterator[Hole]:
        by_cursor = bound_to(self._cursors)(source, self._options.kind_options)
        found = [hole for find in finders for hole in find(source, self._options.kind_options)]
        return without_overlaps([*by_cursor, *found])

    def _is_wanted(self, relative: str) -> bool:
        if self._included is not None and not self._included.match_file(relative):
            return False
        return not self._excluded.match_file(relative)

    def _read(self, relative: str, is_named: bool) -> SourceText | None:
        root = self._workspace.root
        cursors = self._cursors.get(relative)
        try:
            source = self._read_source(root, root / relative, self._options.max_file_bytes)
        except UnusableFileError as error:
            if cursors:
                raise UsageError(f"{cursors[0].where}: {error}") from None
            if is_named or language_of(PurePath(relative), ""):  # nobody asks about pictures
                self._skipped.append(Skipped(relative, error.reason))
            return None
        if is_generated(source.text) and not (is_named or cursors):
            self._skipped.append(Skipped(relative, "says that it is generated"))
            return None
        return source

    def _read_cursors(self) -> dict[str, list[Cursor]]:
        file, cursors = self._options.cursors_file, dict[str, list[Cursor]]()
        if (file is None) == ("cursors" in self._options.kinds):
            raise UsageError("the kind 'cursors' and --cursors FILE need each other; give both or none")
        for cursor in read_cursors(file) if file is not None else ():
            try:
                relative = self._workspace.relative_source(cursor.file)
            except UsageError as error:
                raise UsageError(f"{cursor.where}: {error}") from None
            cursors.setdefault(relative, []).append(cursor)
        return cursors


def without_overlaps(holes: Sequence[Hole]) -> Iterator[Hole]:
    """The holes from top to bottom; of those that overlap, a cursor's or else the larger or else the first given."""
    places: list[tuple[int, int]] = []
    kept: dict[tuple[int, int], Hole] = {}
    for hole in sorted(holes, key=lambda hole: (hole.kind != "cursors", hole.start - hole.end)):
        place = (hole.start, hole.end)
        index = bisect(places, place)
        is_free_above = index == 0 or (places[index - 1][1] <= hole.start and places[index - 1] != place)
        if is_free_above and (index == len(places) or hole.end <= places[index][0]):
            places.insert(index, place)
            kept[place] = hole
    return (kept[place] for place in places)


def _finders(options: SelectOptions) -> list[FindHoles]:
    for name in options.kinds:
        if name not in KINDS:
            raise UsageError(f"unknown kind of holes {name!r}; known are {', '.join(KINDS)}")
    return [KINDS[name].find for name in options.kinds if name != "cursors"]


def _patterns(option: str, patterns: Iterable[str]) -> GitIgnoreSpec:
    for pattern in patterns:
        if not is_pattern(pattern):
            raise UsageError(f"{option} {pattern!r} is no pattern as in .gitignore, for example 'src/**/*.py'")
    return ignore_spec(list(patterns))


@dataclass(frozen=True)
class HoleRow:
    """A hole as a list shows it."""

    place: str
    """``path:line:column``."""
    kind: str
    language: str
    name: str


@dataclass(frozen=True)
class HoleTable:
    """A selection as plain data."""

    rows: tuple[HoleRow, ...]
    num_by_kind: dict[str, int]
    """Most frequent first; so the next."""
    num_by_language: dict[str, int]


def list_table(selection: Selection) -> HoleTable:
    """What ``--list`` shows."""
    rows = tuple(
        HoleRow(f"{hole.source.relative}:{hole.line}:{hole.column}", hole.kind, hole.source.language, hole.name)
        for hole in selection.holes
    )
    num_by_kind, num_by_language = Counter(row.kind for row in rows), Counter(row.language for row in rows)
    return HoleTable(rows, dict(num_by_kind.most_common()), dict(num_by_language.most_common()))
