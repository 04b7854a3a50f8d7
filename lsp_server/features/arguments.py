"""Arguments of commands, from JSON to frozen dataclasses of ours, strictly: what is unknown or wrong is named."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, get_args, get_type_hints

from pygls.exceptions import JsonRpcInvalidParams

_T = TypeVar("_T")
_TYPE_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number from 0 on",
    str: "a string",
    tuple[str, ...]: "a list of strings",
    tuple[int, ...]: "a list of whole numbers from 0 on",
}


@dataclass(frozen=True)
class NoArguments:
    """Of a command that takes none."""


def structured(kind: type[_T], arguments: Sequence[Any]) -> _T:
    """The one object that a command is given; without it all has its default. Raises ``JsonRpcInvalidParams``."""
    if len(arguments) > 1 or not all(isinstance(argument, dict) for argument in arguments):
        raise JsonRpcInvalidParams("the arguments must be one object at most")
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in arguments[0].items() if arguments else ():
        if name not in known:
            raise JsonRpcInvalidParams(f"unknown argument {name!r}; known here: {', '.join(known) or 'none'}")
        if not _fits(value, hints[name]):
            raise JsonRpcInvalidParams(f"{name} is {value!r:.80}; it must be {_TYPE_NAMES[hints[name]]}")
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    if hint in (bool, int, str):
        return type(value) is hint and (hint is not int or value >= 0)
    return isinstance(value, list) and all(_fits(item, get_args(hint)[0]) for item in value)
