"""Cuts text that runs in circles, as small models do."""

from lsp_server.postprocess.hole import Hole

_MIN_EQUAL_LINES = 3
_MIN_PERIOD_CHARS = 3
_MAX_PERIOD_CHARS = 40
_MIN_REPEATS = 5
_MIN_REPEATED_CHARS = 40  # "0, 0, 0, 0, 0, 0" is code


def cut_repetition(text: str, hole: Hole) -> str:
    """One of three or more equal lines in a row; nothing of a last line that ends in a repeated pattern."""
    lines = text.split("\n")
    for number in range(len(lines) - _MIN_EQUAL_LINES + 1):
        if lines[number].strip() and len(set(lines[number : number + _MIN_EQUAL_LINES])) == 1:
            lines = lines[: number + 1]
            break
    if _ends_in_circle(lines[-1]):
        lines.pop()
    return "\n".join(lines)


def _ends_in_circle(line: str) -> bool:
    for period in range(_MIN_PERIOD_CHARS, _MAX_PERIOD_CHARS + 1):
        num_repeats = max(_MIN_REPEATS, -(-_MIN_REPEATED_CHARS // period))
        pattern = line[-period:]
        if pattern.strip() and line.endswith(pattern * num_repeats):
            return True
    return False
