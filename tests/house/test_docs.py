"""What is written down is true: README commands, settings tables, versions."""

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import engine
from lsp_server.cli import app
from lsp_server.config import MidlineConfig
from tests.house.source import ROOT

_README = (ROOT / "README.md").read_text(encoding="utf-8")
_PACKAGE_JSON = json.loads((ROOT / "vscode-client/package.json").read_text(encoding="utf-8"))


def _settings(config: Any = None, path: str = "") -> dict[str, Any]:
    """Dotted path -> default of every setting."""
    config = MidlineConfig() if config is None else config
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{path}{field.name}"
        found |= _settings(value, name + ".") if dataclasses.is_dataclass(value) else {name: value}
    return found


def _code_lines() -> list[str]:
    """Lines of the README's shell blocks, continuation lines joined."""
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", _README, flags=re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def _midline_commands() -> list[str]:
    commands = [part.strip() for line in _code_lines() for part in re.split(r"&&|\|", line.split(" #")[0])]
    return [command for command in commands if command.startswith("midline ")]


def test_the_readme_opens_with_its_two_commands() -> None:
    lines = _code_lines()
    assert lines[0].endswith("&& midline demo")
    assert lines[1] == "bash .ci/run"


@pytest.mark.parametrize("command", _midline_commands())
def test_commands_in_the_readme_exist(command: str) -> None:
    words = shlex.split(command)[1:]
    node: Any = typer.main.get_command(app)
    while hasattr(node, "commands") and words and not words[0].startswith("-"):
        assert words[0] in node.commands, command
        node = node.commands[words.pop(0)]
    known = {option for parameter in node.params for option in parameter.opts} | {"--help"}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in known, command


def _commands(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(node, "commands", {}).items():
        yield from _commands(command, (*path, name))


@pytest.mark.parametrize(
    "path", [*_commands(typer.main.get_command(app))], ids=lambda path: " ".join(path) or "midline"
)
def test_help_says_all_that_is_written_for_it(path: tuple[str, ...]) -> None:
    """Brackets, for one, are commands to whatever lays out the text."""
    node: Any = typer.main.get_command(app)
    for name in path:
        node = node.commands[name]
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0, shown.exception
    words = " ".join(re.sub("[│╭╮╰╯─]", " ", shown.output).split())
    texts = [node.help, *(parameter.help for parameter in node.params if not parameter.hidden)]
    assert [text for text in texts if text and " ".join(text.split()) not in words] == []


def test_every_command_is_in_the_readme() -> None:
    root: Any = typer.main.get_command(app)
    names = {name for name in root.commands if name != "models"} | {
        f"models {n}" for n in root.commands["models"].commands
    }
    assert {name for name in names if f"midline {name}" not in _README} == set()


def test_development_commands_are_those_that_ci_calls() -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    section = _README.split("## Development")[1]
    commands = [
        line.split(" #")[0].strip()
        for line in re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)[0].splitlines()
    ]
    assert len(commands) >= 5
    for command in commands:
        assert command in script, command


def test_the_settings_table_is_the_settings_tree() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| `([^`]*)` \| (.+) \|$", _README, flags=re.MULTILINE)
    documented = {name: json.loads(default) for name, default, _ in rows}
    assert documented == _settings()


def test_the_extension_s_settings_are_the_settings_tree() -> None:
    properties = _PACKAGE_JSON["contributes"]["configuration"]["properties"]
    own = {"midline.command"}  # how the extension starts the server
    assert {
        name.removeprefix("midline."): p["default"] for name, p in properties.items() if name not in own
    } == _settings()


def test_versions_agree() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[([^\]]+)\]", changelog, flags=re.MULTILINE)
    lock = json.loads((ROOT / "vscode-client/package-lock.json").read_text(encoding="utf-8"))
    assert newest is not None
    assert f'version = "{engine.__version__}"' in pyproject
    assert {newest.group(1), _PACKAGE_JSON["version"], lock["version"]} == {engine.__version__}
