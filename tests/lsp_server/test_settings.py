import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import PROMPT_FORMATS
from engine.errors import ConfigError
from lsp_server.config import MidlineConfig
from lsp_server.settings import _RULES, load_config, merge


def test_missing_file_means_defaults(tmp_path: Path) -> None:
    assert load_config(tmp_path / "none.toml") == MidlineConfig()


def test_file_is_laid_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'enabled = false\n[completion]\ndebounce_ms = 5\n[service]\nidle_exit_s = 7\n[engine]\nmodel = "m"\n'
    )
    config = load_config(file)
    assert (config.enabled, config.completion.debounce_ms, config.service.idle_exit_s) == (False, 5, 7.0)
    assert (config.engine.model, config.completion.max_line_tokens) == ("m", 32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enabeld": True}, "unknown setting enabeld; known here: enabled, completion, context, engine, service"),
        ({"completion": {"x": 1}}, "unknown setting completion.x; known here: debounce_ms, multiline, "),
        ({"completion": {"debounce_ms": -1}}, "completion.debounce_ms is -1; it must be 0 or more"),
        ({"completion": {"debounce_ms": "5"}}, "completion.debounce_ms is '5'; it must be a whole number"),
        ({"completion": {"debounce_ms": True}}, "completion.debounce_ms is True; it must be a whole number"),
        ({"completion": {"multiline": "always"}}, "completion.multiline is 'always'; it must be one of auto, never"),
        ({"completion": 3}, "completion must be a table of settings, not int"),
        ({"engine": {"model": {"a": "secret"}}}, "engine.model is a dict; it must be a string"),
        ({"service": {"idle_exit_s": float("inf")}}, "service.idle_exit_s is inf; it must be 0 or more seconds"),
        ({"enabled": 1}, "enabled is 1; it must be true or false"),
        ({"engine": {"model": ""}}, "engine.model is ''; it must be a model's name or path"),
        ({"engine": {"dtype": "int8"}}, "engine.dtype is 'int8'; it must be one of auto, bfloat16, float32"),
        ({"service": {"idle_exit_s": float("nan")}}, "service.idle_exit_s is nan; it must be a number"),
        ({"engine": {"num_threads": 1_000_000}}, "engine.num_threads is 1000000; it must be 0 (automatic) to 256"),
        ({"engine": {"niceness": 20}}, "engine.niceness is 20; it must be 0 (as it was started) to 19"),
        ({"engine": {"niceness": -1}}, "engine.niceness is -1; it must be"),
        ({"engine": {"max_memory_mb": -1}}, "engine.max_memory_mb is -1; it must be 0 (automatic) or more MiB"),
        ({"engine": {"fim_family": "nope"}}, "engine.fim_family is 'nope'; it must be one of auto, qwen"),
        ({"engine": {"max_context_tokens": 1}}, "engine.max_context_tokens is 1; it must be 256 or more"),
        ([], "the settings must be a table of settings, not list"),
    ],
)
def test_bad_setting_names_path_and_rule(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        merge(MidlineConfig(), settings)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("content", [b"enabled = ", b"\xff\xfe", b"[completion]\nx = 1\n"])
def test_bad_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.toml") as caught:
        load_config(file)
    assert "\n" not in str(caught.value)


def test_every_rule_belongs_to_a_setting_whose_default_keeps_it() -> None:
    for path, (is_valid, _) in _RULES.items():
        value: Any = MidlineConfig()
        for name in path.split("."):
            value = getattr(value, name)
        assert is_valid(value), path


def test_folder_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path)


def test_the_extension_offers_what_the_rules_allow() -> None:
    package = json.loads((Path(__file__).parents[2] / "vscode-client/package.json").read_text(encoding="utf-8"))
    properties = package["contributes"]["configuration"]["properties"]
    for path, (is_valid, _) in _RULES.items():
        schema = properties[f"midline.{path}"]
        assert all(map(is_valid, schema.get("enum", ()))), path
        assert "enum" not in schema or not is_valid("another"), path
        for bound, step in (("minimum", -1), ("maximum", 1)):
            if bound in schema:
                assert is_valid(schema[bound]) and not is_valid(schema[bound] + step), path
    formats = properties["midline.engine.fim_family"]["enum"]
    assert formats == ["auto", *PROMPT_FORMATS]
