"""Whether to complete, and one line or a block. Pure functions over a ``Situation``; no settings are read elsewhere."""

import re
from dataclasses import dataclass

from lsp_server.completion.request import EmptyReason, Situation
from lsp_server.config import MidlineConfig

_MAX_LINE_CHARS = 5000  # editors give up drawing such a line, and a model makes nothing of it
_TAB_COLUMNS = 4  # only has to be the same everywhere: lines are compared with each other
# Closing brackets and quotes that an editor has typed, then at most one mark of the statement's end.
_CLOSERS = re.compile(r"""[)\]}>"'`\s]*[:{;,]?\s*""", re.ASCII)
_CLOSER_OF = {"{": "}", "[": "]", "(": ")"}
_OPENER_MARKS = (*_CLOSER_OF, ":")
_OPENER_WORDS = frozenset({"begin", "do", "else", "then"})


@dataclass(frozen=True)
class Shape:
    """The form a suggestion may have."""

    is_block: bool = False
    """False: it ends with the line."""
    min_indent: int = 0
    """A block ends at the first line indented less than this many columns."""
    closer: str = ""
    """The bracket whose line, at ``min_indent``, is the last of the block, if the block has to bring it."""


def refusal(situation: Situation, config: MidlineConfig) -> EmptyReason | None:
    """Why nothing should be generated here, or None."""
    if not config.enabled:
        return EmptyReason.DISABLED
    if not (situation.prefix.strip() or situation.suffix.strip()):
        return EmptyReason.EMPTY_DOCUMENT
    if len(situation.line_prefix) + len(situation.line_suffix) > _MAX_LINE_CHARS:
        return EmptyReason.LINE_TOO_LONG
    if not situation.is_explicit and not has_closers_only(situation.line_suffix):
        return EmptyReason.MID_LINE
    return None


def shape_of(situation: Situation, multiline: str) -> Shape:
    """A block where one can begin: on a blank line, or after an opener at the end of the line."""
    if multiline == "never" or situation.line_suffix.strip():
        return Shape()
    line = situation.line_prefix
    if not line.strip():
        return Shape(is_block=True, min_indent=_blank_line_indent(situation))
    if not ends_with_opener(line) or _has_body(situation):
        return Shape()
    closer = _CLOSER_OF.get(line.rstrip()[-1], "")
    if not closer or _is_closed_below(situation, closer):
        return Shape(is_block=True, min_indent=indent_of(line) + 1)
    return Shape(is_block=True, min_indent=indent_of(line), closer=closer)


def has_closers_only(line_suffix: str) -> bool:
    """Whether the rest of a line is nothing, or what editors close by themselves."""
    return _CLOSERS.fullmatch(line_suffix) is not None


def ends_with_opener(line: str) -> bool:
    """Whether a block is expected to follow this line."""
    text = line.rstrip()
    return text.endswith(_OPENER_MARKS) or text.rpartition(" ")[2].strip() in _OPENER_WORDS


def indent_of(line: str) -> int:
    """Indentation in columns."""
    text = line.expandtabs(_TAB_COLUMNS)
    return len(text) - len(text.lstrip(" "))


def next_lines(suffix: str) -> list[str]:
    """The non-blank lines below the cursor's."""
    return [line for line in suffix.split("\n")[1:] if line.strip()]


def _blank_line_indent(situation: Situation) -> int:
    """Indentation below which a block on this blank line ends."""
    if situation.line_prefix:
        return indent_of(situation.line_prefix)
    above = next((line for line in reversed(situation.prefix.split("\n")) if line.strip()), "")
    return indent_of(above) + 1 if ends_with_opener(above) else 0


def _has_body(situation: Situation) -> bool:
    """Whether the next line is already inside the block that the cursor's line opens."""
    below = next_lines(situation.suffix)
    return bool(below) and indent_of(below[0]) > indent_of(situation.line_prefix)


def _is_closed_below(situation: Situation, closer: str) -> bool:
    """Whether the next line already closes the bracket that ends the cursor's line."""
    below = next_lines(situation.suffix)
    return (
        bool(below) and below[0].lstrip().startswith(closer) and indent_of(below[0]) == indent_of(situation.line_prefix)
    )
