"""Reads the fields of a JSON request. Light and pure.

Every error names the field and what it must be, and never repeats a text: texts are the user's code.
"""

import json
from collections.abc import Mapping, Sequence

from engine.errors import RequestError

_INFINITE = 2**31 - 1
_LARGEST_NUMBER = 1e15


class FieldError(RequestError):
    """A field that is missing or has a wrong type or value."""

    def __init__(self, param: str, problem: str) -> None:
        super().__init__(f"{param} {problem}")
        self.param = param


def parse_object(content: bytes) -> dict[str, object]:
    """The body as a JSON object. Raises ``RequestError``."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise RequestError("the body is not valid JSON") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {_kind(value)}")
    return value


class Fields:
    """Typed access to a JSON object; null counts as absent."""

    def __init__(self, body: Mapping[str, object], where: str = "") -> None:
        self._body = body
        self._where = where

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required when there is no default."""
        value = self._body.get(name)
        if value is None:
            if default is None:
                raise FieldError(self._where + name, "is missing; give a string")
            return default
        if not isinstance(value, str):
            raise FieldError(self._where + name, f"must be a string, not {_kind(value)}")
        return _without_lone_surrogates(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A string or a list of strings, none of them empty."""
        value = self._body.get(name)
        items = [] if value is None else value if isinstance(value, list) else [value]
        texts = [item for item in items if isinstance(item, str) and item]
        if len(texts) < len(items):
            raise FieldError(self._where + name, "must be a non-empty string or a list of such strings")
        return tuple(_without_lone_surrogates(text) for text in texts)

    def integer(self, name: str, default: int, lowest: int = 0, highest: int = _INFINITE) -> int:
        """A whole number within the limits; ``2.0`` counts as one."""
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FieldError(self._where + name, f"must be a whole number, not {_kind(value)}")
        if not lowest <= value <= highest:
            raise FieldError(self._where + name, f"must be between {lowest} and {highest}")
        return value

    def number(self, name: str, default: float) -> float:
        """A number."""
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise FieldError(self._where + name, f"must be a number, not {_kind(value)}")
        if not abs(value) <= _LARGEST_NUMBER:  # also NaN, which Python's JSON accepts
            raise FieldError(self._where + name, "must be a finite number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FieldError(self._where + name, f"must be true or false, not {_kind(value)}")
        return value

    def choice(self, name: str, values: Sequence[str]) -> str:
        """One of some strings; the first when it is absent."""
        value = self.text(name, values[0])
        if value not in values:
            raise FieldError(self._where + name, f"must be {' or '.join(value or 'empty' for value in values)}")
        return value

    def objects(self, name: str) -> "list[Fields]":
        """A list of JSON objects."""
        value = self._body.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise FieldError(self._where + name, "must be a list of objects")
        return [Fields(item, f"{self._where}{name}[{index}].") for index, item in enumerate(value)]

    def nested(self, name: str) -> "Fields":
        """A JSON object; empty when absent."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, dict):
            raise FieldError(self._where + name, f"must be an object, not {_kind(value)}")
        return Fields(value or {}, f"{self._where}{name}.")

    def refuse_unless(self, name: str, harmless: tuple[object, ...]) -> None:
        """Raise when the field asks for something that would be wrong to ignore."""
        value = self._body.get(name)
        if value is not None and not any(value is item or value == item for item in harmless):
            raise FieldError(self._where + name, "is not supported; leave it out")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _without_lone_surrogates(text: str) -> str:
    """JSON may carry half a surrogate pair, which no tokenizer accepts; it becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
