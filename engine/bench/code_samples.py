"""Places in real code where something is written next. Light: imports no torch, knows no model.

Speculation lives on what repeats itself, so its speed can only be measured on text that people wrote.
"""

import glob
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.errors import ConfigError

MIN_CHARS_BEFORE = 8_000
MIN_CHARS_AFTER = 2_000
_MAX_FILES = 400
_MAX_FILE_BYTES = 400_000
_MIN_TYPED_CHARS = 16
_HEADER = re.compile(r"^[ \t]*(?:\w+[ \t]+){0,3}(?:class|def|fn|func|function)\b[^\n]*[:{][ \t]*\n", re.MULTILINE)


@dataclass(frozen=True)
class CodeSample:
    """A file, cut behind the line that opens a function or class."""

    before: str
    after: str


@dataclass(frozen=True)
class Typing:
    """A line that is typed into a file."""

    prefix: str
    """Everything before the line."""
    indent: str
    line: str
    """Without its indentation."""
    suffix: str
    """Everything behind the line, from its line end on."""


def code_samples(pattern: str, count: int, seed: int, unwanted: Sequence[str]) -> list[CodeSample]:
    """``count`` different places in the files that match ``pattern``, or in Python's own library for an empty one.

    Files that hold one of ``unwanted`` are left out, and those that are not text. Raises ``ConfigError`` when there
    are not enough places.
    """
    paths = sorted(glob.glob(pattern or _own_library(), recursive=True))
    rng = np.random.default_rng(seed)
    places = []
    for index in rng.permutation(len(paths))[:_MAX_FILES]:
        text = _read(Path(paths[index]))
        if not any(word in text for word in unwanted):
            places += [(text, header.end()) for header in _HEADER.finditer(text) if _has_room(text, header.end())]
    if len(places) < count:
        raise ConfigError(
            f"--data is {pattern!r}: {len(paths)} files with {len(places)} places to write at, {count} are needed: "
            f"functions {MIN_CHARS_BEFORE:,} characters from a file's start and {MIN_CHARS_AFTER:,} from its end"
        )
    chosen = (places[index] for index in rng.permutation(len(places))[:count])
    return [CodeSample(text[:cut], text[cut:]) for text, cut in chosen]


def typing_at(sample: CodeSample) -> Typing:
    """The first line behind the cut that takes some typing; the first of all where there is none."""
    lines = sample.after.splitlines(keepends=True)
    number = next((i for i, line in enumerate(lines) if len(line.strip()) >= _MIN_TYPED_CHARS), 0)
    line = lines[number].rstrip()
    code = line.lstrip()
    return Typing(
        prefix=sample.before + "".join(lines[:number]),
        indent=line[: len(line) - len(code)],
        line=code,
        suffix=lines[number][len(line) :] + "".join(lines[number + 1 :]),
    )


def _own_library() -> str:
    return str(Path(sysconfig.get_path("stdlib")) / "*.py")


def _has_room(text: str, cut: int) -> bool:
    return cut >= MIN_CHARS_BEFORE and len(text) - cut >= MIN_CHARS_AFTER


def _read(path: Path) -> str:
    """Empty for what cannot be read, and for what is no text."""
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= _MAX_FILE_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return ""
