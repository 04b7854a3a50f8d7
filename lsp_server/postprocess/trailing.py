"""Removes white space at line ends."""

import re
from collections.abc import Sequence

from lsp_server.postprocess.hole import Hole

_BEFORE_LINE_END = re.compile(r"[ \t]+(?=\n)")


def trim_trailing(text: str, hole: Hole, spared: Sequence[tuple[int, int]] = ()) -> str:
    """No spaces before line ends and no blank lines at the end; a last space stays if code follows on its line.

    ``spared`` are parts of the text, from start to end, in which the spaces stay.
    """

    def trimmed(spaces: re.Match[str]) -> str:
        return spaces[0] if any(start <= spaces.start() < end for start, end in spared) else ""

    text = _BEFORE_LINE_END.sub(trimmed, text)
    return text.rstrip("\n") if hole.situation.line_suffix.strip() else text.rstrip()
