"""What is typed in a session: parts of a real file that are taken out, and the order in which a person fills them.

Pure: the same text and seed give the same session. When and with which keys is the typist's business.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

_MAX_LINE_CHARS = 120
_MAX_BODY_LINES = 9
_MIN_BODY_CHARS = 20
_MIN_INTERRUPTED_CHARS = 16
_NUM_TRIES = 300
_OVERSHOOT_CHARS = 20


@dataclass(frozen=True)
class SourceFile:
    """A file that is typed into; its text has LF line ends."""

    name: str
    language_id: str
    text: str


@dataclass(frozen=True)
class Blank:
    """A part of the text that is taken out, to be typed again."""

    start: int
    """Offset in the whole text, in characters."""
    text: str

    @property
    def end(self) -> int:
        """Offset behind it."""
        return self.start + len(self.text)


@dataclass(frozen=True)
class Visit:
    """The cursor goes to a blank, and stays until so many characters of it stand there."""

    blank: int
    num_chars: int


@dataclass(frozen=True)
class TypingSession:
    """One file, its blanks from top to bottom, and the visits to them."""

    file: SourceFile
    blanks: tuple[Blank, ...]
    visits: tuple[Visit, ...]
    seed: int

    @property
    def fixed(self) -> list[str]:
        """What stands around the blanks: one part more than there are blanks."""
        borders = [0, *(offset for blank in self.blanks for offset in (blank.start, blank.end)), len(self.file.text)]
        return [self.file.text[borders[i] : borders[i + 1]] for i in range(0, len(borders), 2)]


def make_sessions(files: Sequence[SourceFile], num_sessions: int, num_chars: int, seed: int) -> list[TypingSession]:
    """Sessions of about ``num_chars`` each, in files drawn without a second turn before all had one.

    Files without a line of code are left out; no session when none has one.
    """
    rng = random.Random(f"files {seed}")
    usable = [file for file in files if _code_lines(file.text)]
    order: list[SourceFile] = []
    while usable and len(order) < num_sessions:
        order += rng.sample(usable, len(usable))
    return [make_session(file, num_chars, seed + number) for number, file in enumerate(order[:num_sessions])]


def make_session(file: SourceFile, num_chars: int, seed: int) -> TypingSession:
    """A session in a file that has a line of code."""
    rng = random.Random(f"session {seed} {file.name}")
    blanks = _choose_blanks(file.text, num_chars, rng)
    return TypingSession(file, blanks, _choose_visits(blanks, rng), seed)


def _choose_blanks(text: str, num_chars: int, rng: random.Random) -> tuple[Blank, ...]:
    lines, starts = _code_lines(text), _line_starts(text)
    chosen: list[Blank] = []
    num_left = num_chars
    for number in range(_NUM_TRIES):
        # the first has several lines if that can be; there are many more lines than bodies that fit
        kinds = (_one_line, _some_lines, _body) if chosen or number > _NUM_TRIES // 3 else (_some_lines, _body)
        start, end = rng.choice(kinds)(text, starts, rng.choice(lines), rng)
        is_apart = all(end < blank.start - 1 or start > blank.end + 1 for blank in chosen)
        if is_apart and 0 < end - start <= num_left + _OVERSHOOT_CHARS:
            chosen.append(Blank(start, text[start:end]))
            num_left -= end - start
        if num_left <= _OVERSHOOT_CHARS:
            break
    if not chosen:  # all is longer than was asked for
        spans = [_one_line(text, starts, line, rng) for line in lines]
        start, end = min(spans, key=lambda span: span[1] - span[0])
        chosen.append(Blank(start, text[start:end]))
    return tuple(sorted(chosen, key=lambda blank: blank.start))


def _choose_visits(blanks: Sequence[Blank], rng: random.Random) -> tuple[Visit, ...]:
    """In any order; the longest is left in its midst for another and come back to."""
    order = rng.sample(range(len(blanks)), len(blanks))
    visits = [Visit(number, len(blanks[number].text)) for number in order]
    longest = max(order, key=lambda number: len(blanks[number].text))
    if len(blanks) > 1 and len(blanks[longest].text) >= _MIN_INTERRUPTED_CHARS:
        place = min(order.index(longest), len(order) - 2)  # another one comes behind it
        visits.insert(place, Visit(longest, int(len(blanks[longest].text) * rng.uniform(0.3, 0.7))))
        if order.index(longest) == place:  # the whole of it would follow at once
            visits[place + 1], visits[place + 2] = visits[place + 2], visits[place + 1]
    return tuple(visits)


def _line_starts(text: str) -> list[int]:
    """Offset of each line, and of one behind the last."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def _code_lines(text: str) -> list[int]:
    """Numbers of the lines that are worth typing."""
    return [
        number
        for number, line in enumerate(text.split("\n"))
        if any(char.isalnum() for char in line) and len(line) <= _MAX_LINE_CHARS
    ]


def _indent(text: str, start: int, end: int) -> int:
    """Number of characters of whitespace that begin a line."""
    line = text[start : end - 1]
    return len(line) - len(line.lstrip())


def _one_line(text: str, starts: list[int], line: int, rng: random.Random) -> tuple[int, int]:
    """All of a line behind its indentation."""
    return starts[line] + _indent(text, starts[line], starts[line + 1]), starts[line + 1] - 1


def _some_lines(text: str, starts: list[int], line: int, rng: random.Random) -> tuple[int, int]:
    last = min(line + rng.randint(1, 4), len(starts) - 2)
    while not text[starts[last] : starts[last + 1] - 1].strip():
        last -= 1  # at most up to the line itself, which is not blank
    return _one_line(text, starts, line, rng)[0], starts[last + 1] - 1


def _body(text: str, starts: list[int], line: int, rng: random.Random) -> tuple[int, int]:
    """What is indented deeper below a line, from the line's end on; nothing if there is no such, or it is long."""
    own = _indent(text, starts[line], starts[line + 1])
    last = line
    for below in range(line + 1, len(starts) - 1):
        is_blank = not text[starts[below] : starts[below + 1] - 1].strip()
        if not is_blank and _indent(text, starts[below], starts[below + 1]) <= own:
            break
        last = last if is_blank else below
    start, end = starts[line + 1] - 1, starts[last + 1] - 1
    is_fit = last - line <= _MAX_BODY_LINES and end - start >= _MIN_BODY_CHARS
    return (start, end) if is_fit else (start, start)
