"""A function's body as a stub may have it: comments and at most one statement. Knows how grammars put them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import tree_sitter

from lsp_server.bulk.grammars import Syntax
from lsp_server.bulk.kinds.layout import indentation, is_first_on_line, line_end, num_columns

_BODY_TYPES = ("block", "statement_block", "compound_statement", "constructor_body")


@dataclass(frozen=True)
class Piece:
    """A statement or a comment; offsets are characters."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Body:
    """What is between a function's opening and its end."""

    function_start: int
    start: int
    """Behind the opening brace, the colon, or the docstring."""
    end: int | None
    """Where the closing brace is; None in Python."""
    indent: str
    """Of the first line that is all the body's; empty if there is none."""
    statement: Piece | None
    comments: tuple[Piece, ...]
    """From top to bottom, without the docstring."""
    docstring: str = ""
    """As it is written, with its quotes."""


def body_of(function: tree_sitter.Node, syntax: Syntax) -> Body | None:
    """None for a function that has no body, or more than one statement, or a syntax error in it."""
    block = function.child_by_field_name("body")
    if block is None or block.type not in _BODY_TYPES or function.has_error or _is_long(block):
        return None
    return _python_body(function, block, syntax) if syntax.language == "python" else _braces(function, block, syntax)


def _is_long(block: tree_sitter.Node) -> bool:
    """Whether there is more than a docstring and a statement; found out without looking at all of a long body."""
    num_left = 2
    for index in range(block.named_child_count):
        node = block.named_child(index)
        num_left -= node is not None and not _is_comment(node)
        if num_left < 0:
            return True
    return False


def docstring_in(block: tree_sitter.Node) -> tree_sitter.Node | None:
    """The docstring of a Python block."""
    first = next((node for node in block.named_children if node.type != "comment"), None)
    is_string = first is not None and first.type == "expression_statement" and first.children[0].type == "string"
    return first if is_string and first is not None and first.child_count == 1 else None


def function_name(function: tree_sitter.Node) -> str:
    """What a person calls it; empty if it has no name."""
    named, inner = function.child_by_field_name("name"), function.child_by_field_name("declarator")
    while named is None and inner is not None:  # C: the name is the innermost declarator
        outer, inner = inner, inner.child_by_field_name("declarator")
        named = outer if inner is None else None
    if named is None and function.parent is not None:  # const name = () => …, { name: () => … }, { name = () => … }
        fields = map(function.parent.child_by_field_name, ("name", "key", "property", "left"))
        named = next((node for node in fields if node is not None), None)
    return node_text(named) if named is not None else ""


def _braces(function: tree_sitter.Node, block: tree_sitter.Node, syntax: Syntax) -> Body | None:
    if block.child_count < 2 or block.children[0].type != "{" or block.children[-1].type != "}":
        return None
    nodes = list(_statements(block.children[1:-1]))
    return _body(function, syntax, nodes, block.children[0], syntax.start(block.children[-1]))


def _statements(nodes: list[tree_sitter.Node]) -> Iterator[tree_sitter.Node]:
    for node in nodes:
        if node.type == "statement_list":  # Go
            yield from _statements(node.children)
        elif node.is_named:
            yield node


def _python_body(function: tree_sitter.Node, block: tree_sitter.Node, syntax: Syntax) -> Body | None:
    colons = [index for index, node in enumerate(function.children) if node.type == ":"]
    if not colons:
        return None
    beside = [node for node in function.children[colons[-1] :] if node.type == "comment"]
    docstring = docstring_in(block)
    nodes = [*beside, *(node for node in block.named_children if node != docstring)]
    if docstring is None:
        return _body(function, syntax, nodes, function.children[colons[-1]], None)
    body = _body(function, syntax, nodes, docstring, None)
    return body and replace(body, docstring=node_text(docstring))


def _body(
    function: tree_sitter.Node,
    syntax: Syntax,
    nodes: list[tree_sitter.Node],
    opening: tree_sitter.Node,
    end: int | None,
) -> Body | None:
    statements = [node for node in nodes if not _is_comment(node)]
    if len(statements) > 1:
        return None
    start, function_start = syntax.end(opening), syntax.start(function)
    comments = [_piece(node, syntax) for node in nodes if _is_comment(node)]
    if end is None and not statements:  # the grammar does not see comments behind the last statement
        comments += _comments_below(syntax.text, start, indentation(syntax.text, function_start))
    statement = _piece(statements[0], syntax) if statements else None
    places = [piece.start for piece in (*comments, statement) if piece] + [syntax.start(opening)]
    own = [place for place in places if place > function_start and is_first_on_line(syntax.text, place)]
    indent = indentation(syntax.text, min(own)) if own else ""
    return Body(function_start, start, end, indent, statement, tuple(dict.fromkeys(comments)))


def _comments_below(text: str, offset: int, indent: str) -> Iterator[Piece]:
    """Python's comments from the line below on that are indented by more than ``indent``."""
    start = line_end(text, offset) + 1
    while start < len(text):
        end = line_end(text, start)
        line = text[start:end].strip()
        if line and (line[0] != "#" or num_columns(indentation(text, start)) <= num_columns(indent)):
            return
        if line:
            begin = start + text[start:end].index("#")
            yield Piece(begin, end, text[begin:end].rstrip())
        start = end + 1


def _piece(node: tree_sitter.Node, syntax: Syntax) -> Piece:
    start, end = syntax.start(node), syntax.end(node)
    text = syntax.text[start:end]
    return Piece(start, start + len(text.rstrip()), text.rstrip())  # some comments reach over their line's end


def _is_comment(node: tree_sitter.Node) -> bool:
    return "comment" in node.type


def node_text(node: tree_sitter.Node) -> str:
    """What a node stands for."""
    return (node.text or b"").decode("utf-8", "replace")
