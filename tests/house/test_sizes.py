"""Files and functions stay small, and a few habits stay out."""

import ast
import re
from pathlib import Path

import pytest

from tests.house.source import PACKAGES, ROOT, module_name, python_files, tracked_files, tree

_MAX_FILE_LINES = 400
_MAX_FUNCTION_LINES = 60
_TYPICAL_FUNCTION_LINES = 35
_MAX_PARAMETERS = 9  # the options of a command

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(path: Path) -> list[_Function]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _length(function: _Function) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


@pytest.mark.parametrize("path", python_files(*PACKAGES), ids=module_name)
def test_files_and_functions_are_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= _MAX_FILE_LINES
    assert [f.name for f in _functions(path) if _length(f) > _MAX_FUNCTION_LINES] == []
    assert [f.name for f in _functions(path) if len(f.args.args) + len(f.args.kwonlyargs) > _MAX_PARAMETERS] == []


def test_most_functions_are_short() -> None:
    lengths = [_length(function) for path in python_files(*PACKAGES) for function in _functions(path)]
    assert sum(length <= _TYPICAL_FUNCTION_LINES for length in lengths) / len(lengths) > 0.95


@pytest.mark.parametrize("path", python_files(*PACKAGES), ids=module_name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree(path))
    assert path.stem not in ("utils", "helpers", "misc", "common")


@pytest.mark.parametrize("path", python_files(*PACKAGES, "tests"), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_bare_except(path: Path) -> None:
    handlers = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ExceptHandler)]
    assert all(handler.type is not None for handler in handlers)


@pytest.mark.parametrize(
    "path",
    [path for path in python_files("tests") if path.name.startswith("test_")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_test_file_has_a_test(path: Path) -> None:
    assert any(function.name.startswith("test_") for function in _functions(path))


# In pieces, so that this file does not name what it forbids.
_FORBIDDEN = re.compile(
    "|".join(
        (
            r"pypi\.org|python" + r"hosted\.",
            r"registry\.npm" + r"js|deb\.deb" + r"ian\.org",
            r"(?<![\w.])/(?:work|farm|root)" + r"/",
        )
    )
)


@pytest.mark.parametrize(
    "path",
    [
        p
        for p in tracked_files()
        if p.suffix in (".py", ".ts", ".mjs", ".json", ".toml", ".md", ".sh", "") and p.name != "LICENSE"
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_files_speak_of_the_project_alone(path: Path) -> None:
    """No path of somebody's machine, no registry host."""
    found = _FORBIDDEN.search(path.read_text(encoding="utf-8"))
    assert found is None, found


def test_no_large_or_binary_files_are_committed() -> None:
    assert [str(path) for path in tracked_files() if path.stat().st_size > 1_000_000] == []
