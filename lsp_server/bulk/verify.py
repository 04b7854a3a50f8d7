"""Whether what the model said can go into the file: first fitted to the hole, then checked. Pure.

Whoever asks has seen to it that the model came to an end: a text that was cut off is nothing to verify.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from engine.textstream import TextStream
from lsp_server.bulk.grammars import LANGUAGES, multiline_strings, num_errors
from lsp_server.bulk.holes import Hole, KindOptions
from lsp_server.bulk.kinds.markers import find_markers
from lsp_server.bulk.kinds.stubs import leaves_stub
from lsp_server.bulk.requests import RequestOptions, request_for
from lsp_server.completion.decide import Shape, indent_of
from lsp_server.completion.request import Situation
from lsp_server.postprocess import Hole as Place
from lsp_server.postprocess.duplicate import cut_duplicate
from lsp_server.postprocess.overlap import trim_overlap
from lsp_server.postprocess.repetition import cut_repetition
from lsp_server.postprocess.trailing import trim_trailing

_OPENERS, _CLOSERS = "([{", ")]}"
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufffd\ud800-\udfff]")
# Markers and ends of the families in `engine.fim`, as they look when a model spells them out.
_CONTROL = re.compile(
    r"<\|\w+\|>|<｜[^｜\s]+｜>|<\[?fim[-_]\w+\]?>|<(?:PRE|SUF|MID|EOT|AIX-SPAN-\w+)>|\[(?:SUFFIX|PREFIX|MIDDLE)\]"
)
_BY_TABS, _BY_SPACES = re.compile(r"^ *\t", re.MULTILINE), re.compile(r"^  +(?!\t)", re.MULTILINE)
_DOCSTRING = re.compile(r"""\s*[rRuU]?(?P<literal>(?P<quotes>\"{3}|'{3}|["']).*?(?P=quotes))""", re.DOTALL)
_OPENED = re.compile(r":[ \t]*(?:#[^\n]*)?\s*[rRuU]?\Z")
_CONDITIONAL = re.compile(r"^[ \t]*#[ \t]*(?P<word>if(?:n?def)?|el\w+|endif)\b", re.MULTILINE)
_SPACES_BEFORE_LINE_END = re.compile(r"[ \t]\n")
_SPACES_AT_END = re.compile(r"(?<=\S)[ \t]+\Z")
# What could stand in a hole at least; a file has no fewer errors than with the best of these.
_PLACEHOLDERS = ("", "x", "x;", "x,")


@dataclass(frozen=True)
class Verdict:
    """A fill, and what is wrong with it."""

    text: str
    """What goes into the hole; LF line ends."""
    reason: str = ""
    """One line; empty: it is good."""


def verify(hole: Hole, raw: str) -> Verdict:
    """Fit the model's text to its hole and check it. Never raises for what ``raw`` or the file contains."""
    situation = Situation(hole.prefix, hole.suffix, hole.source.language, hole.source.relative)
    place = Place(situation, Shape(hole.is_block, hole.min_indent))
    text = _at_cursor(_limited(raw, hole), place)
    if (rest := _behind_docstring(text, hole)) is not None:
        text = _at_cursor(rest, place)
    if not text.strip():
        return Verdict("", "the model said nothing")
    text = cut_duplicate(text, place)
    readings = _readings_before_stop(text) if hole.stop else _readings(text, place)
    verdicts = []
    for reading in dict.fromkeys(readings):
        verdicts.append(_judged(hole, reading, place))
        if not verdicts[-1].reason:
            return verdicts[-1]
    return verdicts[0]


def _limited(raw: str, hole: Hole) -> str:
    """The text up to where the request says that it ends."""
    sampling = request_for(hole, RequestOptions()).sampling
    stream = TextStream(sampling)
    text = stream.push(raw.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "surrogatepass"), 0.0)
    if not stream.finish_reason:
        text += stream.flush()
    return _within_conditionals(text) if sampling.outdented else text


def _within_conditionals(text: str) -> str:
    """The text up to a preprocessor's line that goes on with, or ends, a conditional of before the hole."""
    depth = 0
    for line in _CONDITIONAL.finditer(text):
        if line["word"].startswith("if"):
            depth += 1
        elif depth == 0:
            return text[: line.start()]
        elif line["word"] == "endif":
            depth -= 1
    return text


def _readings(text: str, place: Place) -> Iterator[str]:
    """What the model may have meant, the likelier first: all of it, or what comes before it repeats the rest of the
    line, or leaves the hole through a bracket.
    """
    fitted, rest = trim_overlap(text, place), place.situation.line_suffix.strip()
    repeats_rest = bool(rest) and text.rstrip().endswith(rest)
    for reading in (fitted, text) if repeats_rest else (text, fitted):
        yield from _within_brackets(reading)


def _readings_before_stop(text: str) -> Iterator[str]:
    """The same where a stop string has ended the text: the rest of the line is no part of what the model went on with.

    Nobody writes spaces in front of it, but behind a quote they may be needed.
    """
    for reading in _within_brackets(text):
        yield from (_SPACES_AT_END.sub("", reading), reading)


def _within_brackets(text: str) -> list[str]:
    """The text, and that before a bracket that it closes but has not opened.

    Text that opens it again has left the hole and gone on behind it. A bracket too many may be part of a string.
    """
    depth, end = 0, 0
    for index, char in enumerate(text):
        depth += (char in _OPENERS) - (char in _CLOSERS)
        end = end or (depth < 0) * index
    if not text[:end].strip():
        return [text]
    return [text[:end], text] if depth >= 0 else [text, text[:end]]


def _judged(hole: Hole, text: str, place: Place) -> Verdict:
    has_spaces = _SPACES_BEFORE_LINE_END.search(text) and not hole.stop  # what has a stop is for people to read
    fill = trim_trailing(text, place, _strings_in(hole, text) if has_spaces else ())
    if place.situation.line_suffix[:1].isspace():
        fill = fill.rstrip()
    if not fill.strip():
        return Verdict("", "it only repeats what follows")
    if cut_repetition(fill, place) != fill:
        return Verdict(fill, "it repeats itself")
    return Verdict(fill, next(filter(None, (check(hole, fill) for check in _CHECKS)), ""))


def _strings_in(hole: Hole, text: str) -> list[tuple[int, int]]:
    """Where in the text are strings that go over lines, which are what they are to the last space."""
    num_before = len(hole.prefix)
    found = multiline_strings(hole.source.language, hole.filled(text))
    return [(start - num_before, end - num_before) for start, end in found]


def _at_cursor(text: str, place: Place) -> str:
    """A block that begins on a blank line begins there, however many the model leaves, and is indented once."""
    line_prefix = place.situation.line_prefix
    if not place.shape.is_block or line_prefix.strip():
        return text
    text = re.sub(r"\A(?:[ \t]*\n)+", "", text)
    return text.lstrip(" \t") if line_prefix else text


def _behind_docstring(text: str, hole: Hole) -> str | None:
    """What follows a docstring that stands above the hole already, equal but for white space; None without one."""
    said = _DOCSTRING.match(text) if hole.source.language == "python" else None
    if said is None:
        return None
    above, quotes = hole.prefix.rstrip(), said["quotes"]
    start = above.rfind(quotes, 0, -len(quotes))
    is_same = start > 0 and _packed(above[start:]) == _packed(said["literal"])
    return text[said.end() :] if is_same and _OPENED.search(above[:start]) else None


def _packed(text: str) -> str:
    return "".join(text.split())


def _check_characters(hole: Hole, fill: str) -> str:
    return "it contains characters that are no text" if _NO_TEXT.search(fill) else ""


def _check_control(hole: Hole, fill: str) -> str:
    is_control = any(token not in hole.source.text for token in _CONTROL.findall(fill))
    return "it contains a control token of the model" if is_control else ""


def _check_indentation(hole: Hole, fill: str) -> str:
    line_prefix = hole.prefix[hole.prefix.rfind("\n") + 1 :]
    if hole.is_block and not line_prefix.strip() and indent_of(line_prefix + fill) < hole.min_indent:
        return "it is indented less than its block"
    new = fill if hole.stop else _without_strings(hole, fill)
    new = new if not line_prefix else new.partition("\n")[2]
    outside = f"{hole.prefix}.{hole.suffix}"
    for other, own, problem in (
        (_BY_TABS, _BY_SPACES, "it is indented with tabs, but the file with spaces"),
        (_BY_SPACES, _BY_TABS, "it is indented with spaces, but the file with tabs"),
    ):
        if other.search(new) and own.search(outside) and not other.search(outside):
            return problem
    return ""


def _without_strings(hole: Hole, fill: str) -> str:
    pieces, end = [], 0
    for start, string_end in _strings_in(hole, fill) if "\n" in fill else ():
        pieces.append(fill[end : max(start, end)])
        end = max(string_end, end)
    return "".join([*pieces, fill[end:]])


def _check_is_filled(hole: Hole, fill: str) -> str:
    """It leaves no marker where one was, and no function unwritten."""
    source = replace(hole.source, text=hole.filled(fill))
    start = hole.start + len(hole.before_fill)
    end = start + len(fill)
    if leaves_stub(source, start, end):
        return "it is still a stub"
    if hole.kind != "markers":
        return ""
    own = hole.source.text[hole.start : hole.end].strip()  # perhaps one that the user has made up
    is_left = bool(own) and hole.name == own and own in fill
    others = find_markers(source, KindOptions())
    is_left = is_left or any(start <= other.start and other.end <= end for other in others)
    return "it is still a marker" if is_left else ""


def _check_not_only_comments(hole: Hole, fill: str) -> str:
    language = LANGUAGES.get(hole.source.language)
    start = language.line_comment if language else ""
    lines = [line.strip() for line in fill.splitlines() if line.strip()]
    is_only = hole.kind == "stubs" and start and all(line.startswith(start) for line in lines)
    return "it is only a comment" if is_only else ""


def _check_syntax(hole: Hole, fill: str) -> str:
    language = hole.source.language
    count = _num_errors(language, hole.filled(fill))
    texts = (hole.source.text, *map(hole.filled, _PLACEHOLDERS))
    is_new = count and any(count > _num_errors(language, text) for text in texts)
    return "it breaks the file's syntax" if is_new else ""


def _num_errors(language: str, text: str) -> int:
    count = num_errors(language, text) or 0  # None: no grammar
    return count + (language == "python" and not _is_python(text))


def _is_python(text: str) -> bool:
    """The grammar forgives wrong indentation, which is what goes wrong most often."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


_CHECKS: tuple[Callable[[Hole, str], str], ...] = (
    _check_characters,
    _check_control,
    _check_indentation,
    _check_syntax,
    _check_is_filled,
    _check_not_only_comments,
)
