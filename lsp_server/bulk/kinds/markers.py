"""Markers that a person puts where something is missing: ``<FILL>`` anywhere, or a comment such as ``# FILL``.

A marker alone on its line is a block with that line's indentation. One beside other text is the rest of a line. The
comment must hold nothing else, and behind a line comment's mark the line must end; ``# <FILL>`` is the same as
``# FILL``. A user's own markers are taken literally, but not as a part of a longer word.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from lsp_server.bulk.grammars import LANGUAGES, Syntax, parse
from lsp_server.bulk.holes import Hole, HoleKind, KindOptions, SourceText, register
from lsp_server.bulk.kinds.layout import is_first_on_line, line_end, line_start, num_columns

_PLAIN = "<FILL>"
_IN_COMMENT = "(?:<FILL>|FILL)"
_END_OF_LINE = r"[ \t]*(?=\n|\Z)"


def find_markers(source: SourceText, options: KindOptions) -> Iterator[Hole]:
    """The marker is what the hole replaces, and white space beside it; it is also the hole's name."""
    text = source.text
    for match in marker_pattern(source.language, options).finditer(text):
        start, end = match.span()
        is_block = is_first_on_line(text, start) and not text[end : line_end(text, end)].strip()
        indent = text[line_start(text, start) : start] if is_block else ""
        while text[start - 2 : start] == "  " and not is_first_on_line(text, start):
            start -= 1  # formatters put two spaces before a comment
        yield Hole(
            source=source,
            kind="markers",
            start=start,
            end=line_end(text, end) if is_block else end,
            is_block=is_block,
            min_indent=num_columns(indent),
            max_tokens=options.max_tokens,
            name=match[0].strip(),
        )


def parse_with_markers(source: SourceText, options: KindOptions) -> Syntax | None:
    """The tree of a text whose markers are read as names, for the kinds that need a tree.

    A marker such as ``<FILL>`` is no syntax, and would break everything around it. Places stay the same.
    """
    language = LANGUAGES.get(source.language)
    if language is None or not language.grammar:
        return None
    marks = (language.line_comment, *(language.block_comment or ())[:1])

    def as_name(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith(marks) else "_" * len(match[0])

    return parse(source.language, marker_pattern(source.language, options).sub(as_name, source.text))


def marker_pattern(language: str, options: KindOptions) -> re.Pattern[str]:
    """Finds every marker of a language."""
    own = (*options.markers.get(language, ()), *options.markers.get("*", ()))
    return _compiled(language, tuple(sorted(filter(str.strip, own), key=len, reverse=True)))


@lru_cache(maxsize=64)
def _compiled(language: str, own: tuple[str, ...]) -> re.Pattern[str]:
    forms = [_literal(marker) for marker in own]
    if language in LANGUAGES:
        if mark := LANGUAGES[language].line_comment:
            forms.append(re.escape(mark) + rf"[ \t]*{_IN_COMMENT}{_END_OF_LINE}")
        if block := LANGUAGES[language].block_comment:
            forms.append(rf"{re.escape(block[0])}[ \t]*{_IN_COMMENT}[ \t]*{re.escape(block[1])}")
    return re.compile("|".join([*forms, re.escape(_PLAIN)]))


def _literal(marker: str) -> str:
    before = r"(?<!\w)" if re.match(r"\w", marker) else ""
    behind = r"(?!\w)" if re.search(r"\w\Z", marker) else ""
    return before + re.escape(marker) + behind


register(HoleKind("markers", "<FILL>, or a comment that says FILL", find_markers))
