"""Imports go one way: ``vscode-client -LSP-> lsp_server -> engine -> torch``, and light modules need no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import PACKAGES, ROOT, imports, is_light, module_name, python_files

# `doctor` reports torch's version and devices; nothing else of the server or the command line may touch it
_MAY_IMPORT_TORCH = {"lsp_server.commands.doctor"}
_ENTRY = {"engine.service.__main__", "lsp_server.__main__"}


def _top(name: str) -> str:
    return name.split(".")[0]


@pytest.mark.parametrize("path", python_files("engine"), ids=module_name)
def test_engine_knows_no_editor(path: Path) -> None:
    assert not {"lsp_server", "pygls", "lsprotocol", "tests"} & set(map(_top, imports(path)))


@pytest.mark.parametrize("path", python_files("lsp_server"), ids=module_name)
def test_lsp_server_uses_only_light_modules_of_the_engine(path: Path) -> None:
    names = imports(path)
    assert "tests" not in set(map(_top, names))
    if module_name(path) not in _MAY_IMPORT_TORCH:
        assert "torch" not in set(map(_top, names))
    modules = {module_name(file): file for file in python_files("engine")}
    heavy = {name for name in names if name in modules and name.count(".") and not is_light(modules[name])}
    packages = {name for name in heavy if modules[name].name == "__init__.py"}
    assert heavy - packages == set()


_BLOCK_TORCH = """
import importlib, sys
sys.modules["torch"] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def _promised_light() -> list[str]:
    light = [module_name(path) for path in python_files("engine") if is_light(path)]
    return sorted({*light, *map(module_name, python_files("lsp_server"))} - _ENTRY)


def test_light_modules_and_the_whole_server_import_without_torch() -> None:
    names = _promised_light()
    assert len(names) > 40
    done = subprocess.run(
        [sys.executable, "-c", _BLOCK_TORCH, *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_only_the_two_packages_are_installed() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in python_files(*PACKAGES)} == set(PACKAGES)
    assert 'include = ["engine*", "lsp_server*"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
