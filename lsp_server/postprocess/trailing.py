"""Removes white space at line ends."""

import re

from lsp_server.postprocess.hole import Hole

_BEFORE_LINE_END = re.compile(r"[ \t]+(?=\n)")


def trim_trailing(text: str, hole: Hole) -> str:
    """No spaces before line ends and no blank lines at the end; a last space stays if code follows on its line."""
    text = _BEFORE_LINE_END.sub("", text)
    return text.rstrip("\n") if hole.situation.line_suffix.strip() else text.rstrip()
