"""Whether a text runs in circles, as those of small models do, and would go on to its limit. Light: imports no torch.

Code repeats itself too: what counts is that the same stands there again and again with nothing in between. Lines are
compared without their indentation, since what circles is often nested one level deeper each time.
"""

_MAX_PERIOD_LINES = 12
_MIN_REPEATS = 3
_MIN_PERIOD_CHARS = 20
_MIN_REPEATED_TWICE_CHARS = 160
"""A part as long as this counts when it stands there only twice."""
_CHARS_IN_LINE = range(3, 41)
_MIN_REPEATS_IN_LINE = 5
_MIN_REPEATED_IN_LINE_CHARS = 80


class Repetition:
    """Watches a text that grows."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._line = ""

    def push(self, text: str) -> bool:
        """Take what comes next; True when the text runs in circles by now."""
        *whole, last = (self._line + text).split("\n")
        self._line = last
        for line in whole:
            if content := line.strip():
                self._lines.append(content)
                if _ends_in_equal_parts(self._lines):
                    return True
        return ends_in_pattern(last, _MIN_REPEATED_IN_LINE_CHARS)


def ends_in_pattern(line: str, min_chars: int) -> bool:
    """A line whose end, of at least ``min_chars``, is a short pattern over and over: no ruler, which has no letters."""
    if len(line) < min_chars:
        return False
    for period in _CHARS_IN_LINE:
        pattern = line[-period:]
        num_repeats = max(_MIN_REPEATS_IN_LINE, -(-min_chars // period))
        if any(map(str.isalnum, pattern)) and line.endswith(pattern * num_repeats):
            return True
    return False


def _ends_in_equal_parts(lines: list[str]) -> bool:
    for period in range(1, min(_MAX_PERIOD_LINES, len(lines) // 2) + 1):
        part = lines[-period:]
        num_chars = sum(map(len, part))
        num_repeats = 2 if num_chars >= _MIN_REPEATED_TWICE_CHARS else _MIN_REPEATS
        if num_chars >= _MIN_PERIOD_CHARS and lines[-period * num_repeats :] == part * num_repeats:
            return True
    return False
