"""Cuts text that runs in circles, as small models do."""

from engine.repetition import ends_in_pattern
from lsp_server.postprocess.hole import Hole

_MIN_EQUAL_LINES = 3
_MIN_REPEATED_CHARS = 40  # "0, 0, 0, 0, 0, 0" is code


def cut_repetition(text: str, hole: Hole) -> str:
    """One of three or more equal lines in a row; nothing of a last line that ends in a repeated pattern."""
    lines = text.split("\n")
    for number in range(len(lines) - _MIN_EQUAL_LINES + 1):
        if lines[number].strip() and len(set(lines[number : number + _MIN_EQUAL_LINES])) == 1:
            lines = lines[: number + 1]
            break
    if ends_in_pattern(lines[-1], _MIN_REPEATED_CHARS):
        lines.pop()
    return "\n".join(lines)
