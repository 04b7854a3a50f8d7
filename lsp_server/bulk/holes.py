"""A hole: a place in a file that is to be filled. Kinds of holes register themselves; nothing here knows one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class SourceText:
    """A file as it was read. ``text`` has LF line ends and no BOM; the rest says how to write it back."""

    path: Path
    """Absolute."""
    relative: str
    """To the workspace, with slashes: how it is named everywhere."""
    language: str
    """A name from ``lsp_server.bulk.grammars``, such as ``python`` or ``cpp``; empty: unknown."""
    text: str
    digest: str
    """SHA-256 of the file's bytes, in hexadecimal digits."""
    mtime_ns: int
    mode: int
    eol: str = "\n"
    """The most frequent line end."""
    has_bom: bool = False


@dataclass(frozen=True)
class Hole:
    """``source.text[start:end]`` is replaced by what the model says; all offsets are characters of ``source.text``."""

    source: SourceText
    kind: str
    start: int
    end: int
    """Equal to ``start`` where nothing is replaced."""
    is_block: bool = False
    """Several lines may be filled in; False: the fill ends with the line."""
    min_indent: int = 0
    """A block ends at the first non-blank line indented less than this many columns; 0: no such end."""
    max_tokens: int = 256
    before_fill: str = ""
    """Put before the fill by us, such as the opening quotes of a docstring; the model sees it before the cursor."""
    after_fill: str = ""
    """Put behind the fill; the model sees it in front of the text after the hole."""
    stop: tuple[str, ...] = ()
    """The fill ends before the first of these."""
    name: str = ""
    """What a person calls it, such as the function's name; for lists."""

    @property
    def line(self) -> int:
        """1-based, of ``start``."""
        return self.source.text.count("\n", 0, self.start) + 1

    @property
    def column(self) -> int:
        """1-based, of ``start``, in characters."""
        return self.start - self.source.text.rfind("\n", 0, self.start)

    @property
    def prefix(self) -> str:
        """What the model sees before the cursor."""
        return self.source.text[: self.start] + self.before_fill

    @property
    def suffix(self) -> str:
        """What the model sees behind it."""
        return self.after_fill + self.source.text[self.end :]

    def filled(self, fill: str) -> str:
        """The whole text with this hole filled."""
        return self.prefix + fill + self.suffix


@dataclass(frozen=True)
class KindOptions:
    """What a user may say of kinds."""

    markers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Further markers by language; ``*`` is every language."""
    max_tokens: int = 256


FindHoles = Callable[[SourceText, KindOptions], Iterator[Hole]]
"""Finds the holes of one kind in one file, from top to bottom; never raises for what a file contains."""


@dataclass(frozen=True)
class HoleKind:
    """A registered kind."""

    name: str
    help: str
    """One line."""
    find: FindHoles


KINDS: dict[str, HoleKind] = {}
"""By name; filled by the modules in ``lsp_server.bulk.kinds``."""


def register(kind: HoleKind) -> None:
    """Add a kind. Raises ``ValueError`` if there is one of its name."""
    if kind.name in KINDS:
        raise ValueError(f"there is a kind of holes {kind.name!r} already")
    KINDS[kind.name] = kind
