"""What says in each language that a function is not written yet, and what only looks like it. Tables for ``stubs``."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import tree_sitter

_SAYS = (
    r"(?i:not[\s_-]*(?:yet[\s_-]*)?(?:been\s*)?(?:implemented|supported\s+yet|written)|un-?implemented|implement\s+me"
    r"|to\s+be\s+implemented|\btodo\b|\bfixme\b)"
)
TODO = re.compile(rf"{_SAYS}|(?i:\b(?:implement|xxx|your code)\b)")
"""In a comment: something is to be done here."""

MEANT = re.compile(
    r"(?i:\bnothing\b|\bno-?op\b|\bintentional|\bdeliberate|\bon purpose\b|\bsubclass|\boverrid|\bhook\b)"
)
"""In a comment, or in the first line of a docstring: that it does nothing, or that others do it."""

_LITERAL = (
    r"(?:None|null|nil|NULL|nullptr|undefined|true|false|True|False|-?\d[\w.]*|[rbuf]?\"\"|''|``|\[\]|\{\}|\(\)"
    r"|Ok\(\(\)\)|vec!\[\]|String::new\(\)|(?:Default|Self|Vec)::(?:default|new)\(\))"
)
DUMMY = re.compile(rf"(?:return\b)?\s*(?:{_LITERAL}(?:\s*,\s*{_LITERAL})*)?\s*;?|(?:std::)?abort\(\);?")
"""What people return until they know better. It says nothing by itself, only beside a comment such as ``TODO``."""


@dataclass(frozen=True)
class Unwritten:
    """How one language says it."""

    functions: str
    """A tree-sitter query that captures ``@function`` nodes with a field ``body``."""
    statement: re.Pattern[str]
    """The only statement of such a body, all of it."""
    may_be_empty: Callable[[tree_sitter.Node, str], bool]
    """Of a function and its text before the body: whether doing nothing is what it is for."""


def _statement(*forms: str) -> re.Pattern[str]:
    return re.compile("|".join(form.replace("SAYS", _SAYS) for form in forms), re.DOTALL)


def _never(function: tree_sitter.Node, header: str) -> bool:
    return False


def _script_may_be_empty(function: tree_sitter.Node, header: str) -> bool:
    """Callbacks, constructors (their parameters may be fields), overrides, and members of object literals."""
    if function.type != "method_definition":
        return function.type in ("arrow_function", "function_expression")
    is_literal = function.parent is not None and function.parent.type == "object"
    return is_literal or re.search(r"\boverride\b|\bconstructor\s*\(", header) is not None


def _go_may_be_empty(function: tree_sitter.Node, header: str) -> bool:
    """Methods that only mark a type: no parameters, no result."""
    parameters = function.child_by_field_name("parameters")
    has_parameters = parameters is not None and parameters.named_child_count > 0
    return function.type == "method_declaration" and not has_parameters and not function.child_by_field_name("result")


def _rust_may_be_empty(function: tree_sitter.Node, header: str) -> bool:
    """What a trait does unless told otherwise."""
    around = function.parent.parent if function.parent is not None else None
    return around is not None and around.type == "trait_item"


def _java_may_be_empty(function: tree_sitter.Node, header: str) -> bool:
    """Constructors, overrides, and what an interface does unless told otherwise."""
    return function.type == "constructor_declaration" or re.search(r"@Override\b|\bdefault\b", header) is not None


def _cpp_may_be_empty(function: tree_sitter.Node, header: str) -> bool:
    """Constructors and destructors, which have no type, and virtual methods."""
    has_type = function.child_by_field_name("type") is not None
    return not has_type or re.search(r"\b(?:virtual|override|final)\b", header) is not None


_PYTHON = Unwritten(
    "(function_definition) @function",
    _statement(
        r"pass",
        r"\.\.\.",
        r"raise\s+NotImplemented(?:Error)?\b(?!.*(?i:subclass|overrid|abstract|derived)).*",
        r"raise\s+(?!NotImplemented)[\w.]*(?:Error|Exception)\(.*SAYS.*\)",
        r"assert\s+False\s*,.*SAYS.*",
    ),
    _never,
)
_SCRIPT = Unwritten(
    "[(function_declaration) (generator_function_declaration) (function_expression) (arrow_function)"
    " (method_definition)] @function",
    _statement(
        r"throw\s+(?:new\s+)?[\w.]*(?:Error|Exception)\s*\(.*SAYS.*\)\s*;?",
        r"throw\s+(?:new\s+)?[\w.]*(?:NotImplemented|Unimplemented)\w*\s*(?:\(.*\))?\s*;?",
        r"throw\s*['\"`].*SAYS.*;?",
    ),
    _script_may_be_empty,
)
_C_CALLS = r"(?:\w*(?i:assert|panic|fatal|error|abort|unreachable|todo|printf|puts)\w*|die|errx?)\s*\(.*SAYS.*\)\s*;"

UNWRITTEN: dict[str, Unwritten] = {
    "python": _PYTHON,
    "javascript": _SCRIPT,
    "typescript": _SCRIPT,
    "tsx": _SCRIPT,
    "go": Unwritten(
        "[(function_declaration) (method_declaration)] @function",
        _statement(
            r"(?:panic|log\.(?:Fatal|Panic)\w*)\(.*SAYS.*\)",
            r"return\s+(?:[^\n]*,\s*)?(?:errors\.New|fmt\.Errorf)\(.*SAYS.*\)",
        ),
        _go_may_be_empty,
    ),
    "rust": Unwritten(
        "(function_item) @function",
        _statement(
            r"(?:(?:std|core)::)?(?:todo|unimplemented)!\s*[({\[].*[)}\]]\s*;?",
            r"(?:(?:std|core)::)?(?:panic|unreachable)!\s*[({\[].*SAYS.*[)}\]]\s*;?",
        ),
        _rust_may_be_empty,
    ),
    "java": Unwritten(
        "[(method_declaration) (constructor_declaration)] @function",
        _statement(
            r"throw\s+new\s+[\w.]*(?:NotImplemented|Unimplemented)\w*\s*\(.*\)\s*;",
            r"throw\s+new\s+[\w.]+\s*\(.*SAYS.*\)\s*;",
        ),
        _java_may_be_empty,
    ),
    "c": Unwritten("(function_definition) @function", _statement(_C_CALLS), _never),
    "cpp": Unwritten(
        "(function_definition) @function",
        _statement(
            _C_CALLS,
            r"throw\s+[\w:]+\s*[({].*SAYS.*[)}]\s*;",
            r"throw\s+[\w:]*(?i:not_?implemented|unimplemented)\w*\s*(?:[({].*[)}])?\s*;",
        ),
        _cpp_may_be_empty,
    ),
}
