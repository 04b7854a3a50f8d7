"""Functions that are declared but not written: the body says so, or does nothing.

A body is a stub if, besides a docstring and comments, it has only

- a statement that says so: ``pass``, ``...``, ``raise NotImplementedError``, ``todo!()``, ``panic("TODO")``, ``throw
  new Error("not implemented")`` … (``unwritten`` has the table of each language),
- a comment such as ``TODO``, alone or beside a dummy such as ``return null;``,
- nothing at all. In Python that is a docstring alone, too, and ``def noop(): pass`` counts: nothing tells it from a
  stub. Elsewhere it is ``{}``, but not where doing nothing is usual: callbacks, constructors, overrides and defaults.

What is meant to be filled in elsewhere is left alone: abstract methods, overloads, protocols, ``.pyi`` files, methods
of interfaces, decorated functions that only hold their decorator (command groups, generic functions), and what says
that it does nothing or that subclasses do it, in a comment or the first line of its docstring.

Docstring and comments are kept, in front of the fill; a body on the function's line is given lines of its own. In
languages with braces the text after the hole begins with the closing one, white space apart.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import tree_sitter

from lsp_server.bulk.grammars import Syntax
from lsp_server.bulk.holes import Hole, HoleKind, KindOptions, SourceText, register
from lsp_server.bulk.kinds.bodies import Body, Piece, body_of, function_name, node_text
from lsp_server.bulk.kinds.layout import indent_unit, indentation, is_first_on_line, num_columns
from lsp_server.bulk.kinds.markers import marker_pattern, parse_with_markers
from lsp_server.bulk.kinds.unwritten import DUMMY, MEANT, TODO, UNWRITTEN

_MAX_STATEMENT_CHARS = 1000
_HOLDS_ITS_DECORATOR = re.compile(r"@[\w.]*\b(?:abstract\w*|overload|singledispatch\w*|group|callback)\b")
_IS_FOR_OTHERS = re.compile(r"\b(?:Protocol|ABC|ABCMeta)\b")
_WRAPPERS = frozenset({"decorated_definition", "export_statement"})
_REST = re.compile(r"[ \t]*;?[ \t]*(?=\n|\Z)")


@dataclass(frozen=True)
class _Stub:
    """A function that is not written."""

    function: tree_sitter.Node
    body: Body
    syntax: Syntax


def find_stubs(source: SourceText, options: KindOptions) -> Iterator[Hole]:
    """A hole for each stub's body."""
    is_marker = marker_pattern(source.language, options).fullmatch
    for stub in _stubs(source, options):
        markers = [comment for comment in stub.body.comments if is_marker(comment.text)]
        yield _hole(source, stub.body, markers, options, function_name(stub.function))


def leaves_stub(source: SourceText, start: int, end: int) -> bool:
    """Whether ``text[start:end]``, which has just been filled in, is all that makes its function a stub, or is one.

    A function inside a larger text may be empty, and a stub that does not need this text was there before.
    """
    filled = source.text[start:end]
    start += len(filled) - len(filled.lstrip())
    end = start + len(filled.strip())
    return any(_is_made_by(stub, start, end) for stub in _stubs(source, KindOptions()))


def _is_made_by(stub: _Stub, start: int, end: int) -> bool:
    body, syntax = stub.body, stub.syntax
    outer = stub.function.parent
    wholes = [stub.function, *([outer] if outer is not None and outer.type in _WRAPPERS else [])]
    if any((syntax.start(whole), syntax.end(whole)) == (start, end) for whole in wholes):
        return True
    docstring = Piece(body.start - len(body.docstring), body.start, body.docstring)
    said = [body.statement] if body.statement else [docstring, *body.comments]
    last = max(syntax.end(stub.function), *(piece.end for piece in (docstring, *body.comments)))
    is_body = docstring.start <= start and end <= (last if body.end is None else body.end)
    return is_body and any(start <= piece.start and piece.end <= end for piece in said if piece.text)


def _stubs(source: SourceText, options: KindOptions) -> Iterator[_Stub]:
    rules, syntax = UNWRITTEN.get(source.language), parse_with_markers(source, options)
    if rules is None or syntax is None or source.path.suffix == ".pyi":
        return
    is_marker = marker_pattern(source.language, options).fullmatch
    for function in syntax.captures(rules.functions).get("function", ()):
        body = body_of(function, syntax)
        if body is None or _is_for_others(function):
            continue
        says_todo = any(TODO.search(comment.text) or is_marker(comment.text) for comment in body.comments)
        if not says_todo and any(map(MEANT.search, _remarks(body))):
            continue
        if body.statement is None:
            header = source.text[body.function_start : body.start]
            is_stub = says_todo or not (body.comments or rules.may_be_empty(function, header))
        else:
            statement = body.statement.text[:_MAX_STATEMENT_CHARS]
            is_dummy = says_todo and DUMMY.fullmatch(statement)
            is_stub = bool(is_dummy or rules.statement.fullmatch(statement))
        if is_stub:
            yield _Stub(function, body, syntax)


def _hole(source: SourceText, body: Body, markers: list[Piece], options: KindOptions, name: str) -> Hole:
    """It replaces the statement and the markers; a comment behind these goes before the fill."""
    text = source.text
    replaced = sorted([*markers, *filter(None, [body.statement])], key=lambda piece: piece.start)
    comments = [comment for comment in body.comments if comment not in markers]
    above = [comment for comment in comments if not replaced or comment.end <= replaced[0].start]
    below = comments[len(above) :]
    own_indent = indentation(text, body.function_start)
    indent = body.indent or own_indent + indent_unit(text, source.language)
    start, before = max([body.start, *(comment.end for comment in above)]), "\n" + indent
    if replaced and is_first_on_line(text, replaced[0].start):
        start, before = replaced[0].start, ""
    opening = body.start - len(body.docstring)
    if start == body.start and body.docstring and not is_first_on_line(text, opening):
        start, before = len(text[:opening].rstrip()), f"\n{indent}{body.docstring}\n{indent}"
    end = max([body.start, start, *(piece.end for piece in (*replaced, *below))])
    if rest := _REST.match(text, end):
        end = rest.end()
    after = ""
    if body.end is not None and "\n" not in text[end : body.end]:
        end, after = body.end, "\n" + own_indent
    return Hole(
        source=source,
        kind="stubs",
        start=start,
        end=end,
        is_block=True,
        min_indent=num_columns(indent),
        max_tokens=options.max_tokens,
        before_fill=before + "".join(f"{text[comment.start : comment.end]}\n{indent}" for comment in below),
        after_fill=after,
        name=name,
    )


def _remarks(body: Body) -> Iterator[str]:
    yield from (comment.text for comment in body.comments)
    yield body.docstring.partition("\n")[0]


def _is_for_others(function: tree_sitter.Node) -> bool:
    """Whether a Python function is meant to have no body here, going by its decorators and its class."""
    outer = function
    if outer.parent is not None and outer.parent.type == "decorated_definition":
        outer = outer.parent
        if any(_HOLDS_ITS_DECORATOR.match(node_text(node)) for node in outer.children if node.type == "decorator"):
            return True
    holder = outer.parent.parent if outer.parent is not None else None
    if holder is None or holder.type != "class_definition":
        return False
    bases = holder.child_by_field_name("superclasses")
    return bases is not None and _IS_FOR_OTHERS.search(node_text(bases)) is not None


register(HoleKind("stubs", "functions that are declared but not written", find_stubs))
