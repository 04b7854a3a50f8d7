"""Documentation that is missing from public functions and classes.

In Python a docstring, in JavaScript, TypeScript, Java, C and C++ a comment ``/** … */``, in Go and Rust one line of
``//`` or ``///``. Whatever comment already stands directly above counts as documentation. Public is what is exported;
where nothing says so, what is at the top level; names that begin with an underscore never are. Overrides, overloads
and setters are left alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import tree_sitter

from lsp_server.bulk.grammars import Syntax
from lsp_server.bulk.holes import Hole, HoleKind, KindOptions, SourceText, register
from lsp_server.bulk.kinds.bodies import docstring_in, function_name
from lsp_server.bulk.kinds.exported import EXPORTED
from lsp_server.bulk.kinds.layout import indent_unit, indentation, is_first_on_line, line_end, num_columns
from lsp_server.bulk.kinds.markers import parse_with_markers

_OUTER = frozenset({"export_statement", "template_declaration", "type_declaration", "type_definition"})
_ATTRIBUTES = frozenset({"attribute_item", "decorator"})
_LINE_MARKS = {"go": "//", "rust": "///"}


@dataclass(frozen=True)
class _Place:
    """Where documentation goes, and what is around it."""

    start: int
    end: int
    before: str
    after: str
    min_indent: int = 0
    """Of a block; 0: one line."""
    stop: str = ""


def find_docstrings(source: SourceText, options: KindOptions) -> Iterator[Hole]:
    """A hole where documentation is missing. Python's are between the signature and the body, the others above."""
    rules, syntax = EXPORTED.get(source.language), parse_with_markers(source, options)
    if rules is None or syntax is None or source.path.suffix == ".pyi":
        return
    place_of = _inside if source.language == "python" else _above
    for item in syntax.captures(rules.items).get("item", ()):
        name = function_name(item)
        if not name or name.startswith(("_", "#")) or not rules.is_exported(item, name):
            continue
        place = place_of(item, syntax, name)
        if place is not None:
            yield Hole(
                source=source,
                kind="docstrings",
                start=place.start,
                end=place.end,
                is_block=bool(place.stop),
                min_indent=place.min_indent,
                max_tokens=options.max_tokens,
                before_fill=place.before,
                after_fill=place.after,
                stop=(place.stop,) if place.stop else (),
                name=name,
            )


def _inside(item: tree_sitter.Node, syntax: Syntax, name: str) -> _Place | None:
    block = item.child_by_field_name("body")
    colon = next((node for node in reversed(item.children) if node.type == ":"), None)
    if block is None or colon is None or docstring_in(block) is not None:
        return None
    text, start = syntax.text, syntax.end(colon)
    first = syntax.start(block.children[0]) if block.children else len(text)
    if first <= line_end(text, start):
        indent = indentation(text, syntax.start(item)) + indent_unit(text, "python")
        return _Place(start, first, f'\n{indent}"""', f'"""\n{indent}', num_columns(indent), '"""')
    if block.children:
        indent = indentation(text, first)
    else:
        indent = indentation(text, syntax.start(item)) + indent_unit(text, "python")
    end = line_end(text, start)
    return _Place(end, end, f'\n{indent}"""', '"""', num_columns(indent), '"""')


def _above(item: tree_sitter.Node, syntax: Syntax, name: str) -> _Place | None:
    """None where documentation stands already, or the declaration is not the first of its line."""
    while item.parent is not None and item.parent.type in _OUTER and not _is_one_of_group(item, item.parent):
        item = item.parent
    while item.prev_sibling is not None and item.prev_sibling.type in _ATTRIBUTES:
        item = item.prev_sibling
    text, start = syntax.text, syntax.start(item)
    if not is_first_on_line(text, start) or _is_below_comment(item, syntax):
        return None
    indent = indentation(text, start)
    if mark := _LINE_MARKS.get(syntax.language):
        subject = f"{name} " if syntax.language == "go" else ""
        return _Place(start, start, f"{mark} {subject}", f"\n{indent}")
    return _Place(start, start, f"/**\n{indent} * ", f"\n{indent} */\n{indent}", num_columns(indent) + 1, "*/")


def _is_one_of_group(item: tree_sitter.Node, outer: tree_sitter.Node) -> bool:
    """Whether ``outer`` is Go's ``type ( … )``."""
    return outer.child_count > 1 and outer.children[1].type == "("


def _is_below_comment(item: tree_sitter.Node, syntax: Syntax) -> bool:
    above = item.prev_sibling
    if above is None or "comment" not in above.type:
        return False
    return syntax.text[syntax.end(above) : syntax.start(item)].count("\n") <= 1


register(HoleKind("docstrings", "missing documentation of public functions and classes", find_docstrings))
