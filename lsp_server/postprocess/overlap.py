"""Fits a suggestion to the rest of the cursor's line, so that nothing stands there twice.

Editors close brackets and quotes while one types. A model that is not shown those closes them again.
"""

from lsp_server.completion.decide import has_closers_only
from lsp_server.completion.request import Overlay
from lsp_server.postprocess.hole import Hole

_OPENER_OF = {")": "(", "]": "[", "}": "{", ">": "<"}
_QUOTES = "\"'`"


def trim_overlap(text: str, hole: Hole) -> str:
    """The text up to where it goes on with what stands after the cursor. Right for inserting at the cursor."""
    rest = hole.situation.line_suffix.rstrip()
    if not rest or "\n" in text:
        return text
    if not has_closers_only(rest):
        return text.removesuffix(rest)
    return text[: _closing_index(text, rest.lstrip()[0])]


def closing_overlay(text: str, hole: Hole) -> Overlay | None:
    """The whole text, if it contains the closers after the cursor and more.

    An editor may then replace these closers by it: they are a subsequence of the text, as ghost text requires.
    """
    rest = hole.situation.line_suffix.rstrip()
    if not rest or "\n" in text or not has_closers_only(rest):
        return None
    tail = text[_closing_index(text, rest.lstrip()[0]) :]
    if not tail or rest.lstrip().startswith(tail) or not _is_subsequence(rest, tail):
        return None
    return Overlay(text, len(rest))


def _closing_index(text: str, closer: str) -> int:
    """Where the text closes what was opened before the cursor; its length when it does not."""
    if closer in _OPENER_OF:
        return _first_unmatched(text, _OPENER_OF[closer], closer)
    index = text.find(closer) if closer in _QUOTES else len(text) - 1 if text.endswith(closer) else -1
    return index if index >= 0 else len(text)


def _first_unmatched(text: str, opener: str, closer: str) -> int:
    depth = 0
    for index, char in enumerate(text):
        depth += (char == opener) - (char == closer)
        if depth < 0:
            return index
    return len(text)


def _is_subsequence(part: str, text: str) -> bool:
    chars = iter(text)
    return all(char in chars for char in part)
