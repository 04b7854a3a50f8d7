"""Cuts what already stands below the cursor."""

from lsp_server.completion.decide import has_closers_only, next_lines
from lsp_server.postprocess.hole import Hole

_NUM_LINES = 3


def cut_duplicate(text: str, hole: Hole) -> str:
    """The text before the first place where its next three lines, or all that are left, are the next ones below.

    Lines compare without their indentation. A single closing bracket proves nothing and stays.
    """
    below = [line.strip() for line in next_lines(hole.situation.suffix)[:_NUM_LINES]]
    lines = text.split("\n")
    for number in range(len(lines)):
        rest = [lines[number], *lines[number + 1 :]]
        if number == 0:
            rest[0] = hole.situation.line_prefix + rest[0]
        ahead = [line.strip() for line in rest if line.strip()][:_NUM_LINES]
        if ahead and rest[0].strip() and ahead == below[: len(ahead)] and not has_closers_only(ahead[0]):
            return "\n".join(lines[:number])
    return text
