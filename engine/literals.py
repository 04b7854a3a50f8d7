"""Where a text is inside a string literal, by the family of its language. Light: imports no torch.

Knows quotes and comments and nothing else of a language: what it takes for a string may be none, as in a regular
expression of JavaScript, or in a template inside a template.
"""

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Span:
    """A string or a comment, from its start to its end; no other begins in it."""

    start: str
    end: str
    escape: str = ""
    """The character behind it does not count."""
    is_multiline: bool = False
    """False: a line's end ends it as well."""
    is_string: bool = True
    """False: a comment."""

    @cached_property
    def end_pattern(self) -> re.Pattern[str]:
        """Finds its end, named so, or what must be stepped over before it."""
        escaped = f"{re.escape(self.escape)}.|" if self.escape else ""
        line_end = "" if self.is_multiline else "|\n"
        return re.compile(f"{escaped}(?P<end>{re.escape(self.end)}{line_end})", re.DOTALL)


@dataclass(frozen=True)
class Literals:
    """The spans of a family; of those that begin at one place the first counts."""

    spans: tuple[Span, ...]

    @cached_property
    def _start_pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(f"({re.escape(span.start)})" for span in self.spans))

    def after(self, text: str, inside: Span | None = None) -> Span | None:
        """What a text that begins in ``inside`` ends in; None is plain code. May be asked of one line after another."""
        at = 0
        while at < len(text):
            if inside is None:
                found = self._start_pattern.search(text, at)
                if found is not None:
                    inside = self.spans[(found.lastindex or 0) - 1]
            else:
                found = next((match for match in inside.end_pattern.finditer(text, at) if match["end"]), None)
                if found is not None:
                    inside = None
            if found is None:
                break
            at = found.end()
        return inside


_SHORT = (Span('"', '"', "\\"), Span("'", "'", "\\"))
_C_COMMENTS = (Span("//", "\n", is_string=False), Span("/*", "*/", is_multiline=True, is_string=False))

FAMILIES: dict[str, Literals] = {
    "python": Literals(
        (
            Span('"""', '"""', "\\", is_multiline=True),
            Span("'''", "'''", "\\", is_multiline=True),
            *_SHORT,
            Span("#", "\n", is_string=False),
        )
    ),
    "javascript": Literals((Span("`", "`", "\\", is_multiline=True), *_SHORT, *_C_COMMENTS)),
    "go": Literals((Span("`", "`", is_multiline=True), *_SHORT, *_C_COMMENTS)),
    "java": Literals((Span('"""', '"""', "\\", is_multiline=True), *_SHORT, *_C_COMMENTS)),
    "cpp": Literals((Span('R"(', ')"', is_multiline=True), *_SHORT, *_C_COMMENTS)),
    "rust": Literals(
        (
            Span('r##"', '"##', is_multiline=True),
            Span('r#"', '"#', is_multiline=True),
            Span('r"', '"', is_multiline=True),
            Span("'\"", "'"),  # characters; a single quote may also begin a lifetime, which has no end
            Span("'\\\"", "'"),
            Span('"', '"', "\\", is_multiline=True),
            *_C_COMMENTS,
        )
    ),
}
"""By name."""
