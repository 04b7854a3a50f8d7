"""How a text is laid out around a place: lines and their indentation. Knows no language's grammar."""

from collections import Counter

from lsp_server.bulk.grammars import LANGUAGES
from lsp_server.completion.decide import indent_of


def line_start(text: str, offset: int) -> int:
    """Where the line of ``offset`` begins."""
    return text.rfind("\n", 0, offset) + 1


def line_end(text: str, offset: int) -> int:
    """Where the line of ``offset`` ends, before its line end."""
    end = text.find("\n", offset)
    return len(text) if end < 0 else end


def indentation(text: str, offset: int) -> str:
    """The white space that the line of ``offset`` begins with."""
    line = text[line_start(text, offset) : line_end(text, offset)]
    return line[: len(line) - len(line.lstrip(" \t"))]


def is_first_on_line(text: str, offset: int) -> bool:
    """Whether only white space stands before ``offset`` on its line."""
    return not text[line_start(text, offset) : offset].strip()


def indent_unit(text: str, language: str) -> str:
    """What a file indents by: the step that its lines take most often; its language's usual one if they take none."""
    steps: Counter[str] = Counter()
    above = ""
    for line in text.split("\n"):
        body = line.lstrip(" \t")
        if not body or body.startswith("*"):  # a comment's further lines are indented by one more column
            continue
        own = line[: len(line) - len(body)]
        if own.startswith(above) and own != above:
            steps[own[len(above) :]] += 1
        above = own
    if steps:
        return steps.most_common(1)[0][0]
    return LANGUAGES[language].default_indent if language in LANGUAGES else "    "


def num_columns(indent: str) -> int:
    """Width of an indentation, as ``Hole.min_indent`` counts it."""
    return indent_of(indent + "x")
