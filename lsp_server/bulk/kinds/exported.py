"""Which functions and classes other code can use, in each language. Tables for ``docstrings``."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tree_sitter

from lsp_server.bulk.kinds.bodies import node_text

_SETS_OR_OVERRIDES = re.compile(r"@(?:[\w.]*\b(?:overload|override)\b|\w+\.(?:setter|deleter)\b)")
_HIDDEN = re.compile(r"\A(?:_|#)")


@dataclass(frozen=True)
class Exported:
    """The rules of one language."""

    items: str
    """A tree-sitter query that captures ``@item`` nodes: functions and classes."""
    is_exported: Callable[[tree_sitter.Node, str], bool]
    """Of an item and its name."""


def _ancestors(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def _name(node: tree_sitter.Node) -> str:
    named = node.child_by_field_name("name")
    return node_text(named) if named is not None else ""


def _has_modifier(node: tree_sitter.Node, *words: str) -> bool:
    """Whether one of the words stands before a declaration's name."""
    named = node.child_by_field_name("name")
    before = [child for child in node.children if named is None or child.start_byte < named.start_byte]
    return any(re.search(rf"\b{word}\b", node_text(child)) for child in before for word in words)


def _python(item: tree_sitter.Node, name: str) -> bool:
    decorators = [node_text(node) for node in item.parent.children if node.type == "decorator"] if item.parent else []
    if any(map(_SETS_OR_OVERRIDES.match, decorators)):
        return False
    return all(
        node.type != "function_definition" and not (node.type == "class_definition" and _HIDDEN.match(_name(node)))
        for node in _ancestors(item)
    )


def _script(item: tree_sitter.Node, name: str) -> bool:
    """Exported, or at the top level of a file that exports nothing; and the public methods of such classes."""
    if item.type == "method_definition":
        holder = item.parent.parent if item.parent is not None else None
        is_own = name != "constructor" and not _has_modifier(item, "private", "protected", "override")
        return is_own and holder is not None and "class_declaration" in holder.type and _script(holder, _name(holder))
    parent = item.parent
    if parent is None or _HIDDEN.match(name):
        return False
    if parent.type == "export_statement":
        return True
    return parent.type == "program" and not any(node.type == "export_statement" for node in parent.children)


def _go(item: tree_sitter.Node, name: str) -> bool:
    return name[0].isupper() and not any("function" in node.type or "method" in node.type for node in _ancestors(item))


def _rust(item: tree_sitter.Node, name: str) -> bool:
    return any(node.type == "visibility_modifier" and node_text(node) == "pub" for node in item.children)


def _java(item: tree_sitter.Node, name: str) -> bool:
    modifiers = next((node_text(node) for node in item.children if node.type == "modifiers"), "")
    return re.search(r"\bpublic\b", modifiers) is not None and "@Override" not in modifiers


def _c(item: tree_sitter.Node, name: str) -> bool:
    """At the top level or in a namespace, not ``static``; methods where their class says ``public``."""
    if "::" in name or name == "main" or _is_static_or_override(item):
        return False
    for node in (item, *_ancestors(item)):
        if node.type in ("function_definition", "lambda_expression", "enumerator_list") and node != item:
            return False
        if node.parent is not None and node.parent.type == "field_declaration_list" and not _is_in_public(node):
            return False
    return True


def _is_static_or_override(item: tree_sitter.Node) -> bool:
    is_member = item.parent is not None and item.parent.type == "field_declaration_list"
    own = [node_text(child) for child in item.children if child != item.child_by_field_name("body")]
    return ("static" in own and not is_member) or any(re.search(r"\boverride\b", text) for text in own)


def _is_in_public(member: tree_sitter.Node) -> bool:
    holder = member.parent.parent if member.parent is not None else None
    before = member.prev_sibling
    while before is not None:
        if before.type == "access_specifier":
            return "public" in node_text(before)
        before = before.prev_sibling
    return holder is not None and holder.type == "struct_specifier"


_SCRIPT_FUNCTIONS = "(function_declaration) (generator_function_declaration) (class_declaration) (method_definition)"

EXPORTED: dict[str, Exported] = {
    "python": Exported("[(function_definition) (class_definition)] @item", _python),
    "javascript": Exported(f"[{_SCRIPT_FUNCTIONS}] @item", _script),
    "typescript": Exported(f"[{_SCRIPT_FUNCTIONS} (abstract_class_declaration)] @item", _script),
    "tsx": Exported(f"[{_SCRIPT_FUNCTIONS} (abstract_class_declaration)] @item", _script),
    "go": Exported("[(function_declaration) (method_declaration) (type_spec)] @item", _go),
    "rust": Exported("[(function_item) (struct_item) (enum_item) (trait_item)] @item", _rust),
    "java": Exported(
        "[(class_declaration) (interface_declaration) (enum_declaration) (record_declaration)"
        " (method_declaration)] @item",
        _java,
    ),
    "c": Exported("[(function_definition) (struct_specifier body: (_))] @item", _c),
    "cpp": Exported("[(function_definition) (class_specifier body: (_)) (struct_specifier body: (_))] @item", _c),
}
