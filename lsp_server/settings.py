"""Settings from a TOML file or an editor, structured strictly into ``MidlineConfig``.

An unknown key or a bad value is a ``ConfigError`` that names its dotted path. Nothing is read from an editor here.
"""

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.config import SERVICE_RULES, Rule, one_of
from engine.errors import ConfigError
from lsp_server.config import MidlineConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_T = TypeVar("_T")

_NOT_NEGATIVE: Rule = (lambda value: value >= 0, "0 or more")
_POSITIVE: Rule = (lambda value: value >= 1, "1 or more")

# dotted path -> what its value must be beyond its type
_RULES: dict[str, Rule] = {
    "completion.debounce_ms": _NOT_NEGATIVE,
    "completion.multiline": one_of("auto", "never"),
    "completion.max_line_tokens": _POSITIVE,
    "completion.max_block_tokens": _POSITIVE,
    "completion.block_time_limit_ms": _NOT_NEGATIVE,
    "completion.idle_work": one_of("on_power", "always", "off"),
    "context.max_prefix_chars": _NOT_NEGATIVE,
    "context.max_suffix_chars": _NOT_NEGATIVE,
    **{path: rule for path, rule in SERVICE_RULES.items() if path.startswith("engine.")},
    "service.idle_exit_s": SERVICE_RULES["idle_exit_s"],
}
_TYPE_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}


def load_config(path: Path) -> MidlineConfig:
    """Settings of a TOML file over the defaults; a file that does not exist has none. Raises ``ConfigError``."""
    try:
        with path.open("rb") as file:
            settings = tomllib.load(file)
    except FileNotFoundError:
        return MidlineConfig()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # bad TOML or bad UTF-8
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        return merge(MidlineConfig(), settings)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def merge(base: MidlineConfig, settings: Mapping[str, Any]) -> MidlineConfig:
    """``base`` with the nested settings laid over it. Raises ``ConfigError``; ``base`` is never changed."""
    return _merge(base, settings, "")


def _merge(base: _T, settings: Any, path: str) -> _T:
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{path or 'the settings'} must be a table of settings, not {type(settings).__name__}")
    known = {item.name: getattr(base, item.name) for item in fields(base)}  # type: ignore[arg-type]
    values = {}
    for name, value in settings.items():
        inner = f"{path}.{name}" if path else str(name)
        if name not in known:
            raise ConfigError(f"unknown setting {inner}; known here: {', '.join(known)}")
        default = known[name]
        values[name] = _merge(default, value, inner) if is_dataclass(default) else _checked(inner, value, type(default))
    return type(base)(**{**known, **values})


def _checked(path: str, value: Any, kind: type) -> Any:
    """The value as its type, if it keeps its rule. The type of a setting is that of its default."""
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or value != value:  # a NaN keeps no rule
        shown = repr(value) if type(value) in _TYPE_NAMES else f"a {type(value).__name__}"  # a table may be long
        raise ConfigError(f"{path} is {shown}; it must be {_TYPE_NAMES[kind]}")
    is_valid, rule = _RULES.get(path, (lambda _: True, ""))
    if not is_valid(value):
        raise ConfigError(f"{path} is {value!r}; it must be {rule}")
    return value
