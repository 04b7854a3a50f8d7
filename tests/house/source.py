"""The repository's own files, for the tests that hold the house rules."""

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "lsp_server")


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that is or would be committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for name in listing.split("\0") if name and (path := ROOT / name).is_file())


def python_files(*tops: str) -> list[Path]:
    """Python files below the given top-level folders."""
    return [path for path in tracked_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in tops]


@cache
def tree(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def module_name(path: Path) -> str:
    """Dotted name of a module of ours."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports anywhere; ``from a import b`` counts as ``a`` and ``a.b``."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def is_light(path: Path) -> bool:
    """Whether a module promises in its docstring to need no torch."""
    return "Light" in (ast.get_docstring(tree(path)) or "")
