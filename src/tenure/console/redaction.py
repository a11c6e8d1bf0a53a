"""Turns answers into plain data for JSON, without the values that must not leave this process.

Values of users (arguments, results, documents) may be of any type that a codec returns, so each is made plain here.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, cast
from uuid import UUID

import msgspec
from msgspec import Struct

from tenure.core.check import named, several
from tenure.ops.task_schemas import JSONSchema

REDACTED = "[redacted]"

DEEPEST = 100
"""How deep a value may be nested; what lies deeper is left out."""

LONGEST_NUMBER = 10_000
"""The greatest length of an integer that is written as a number, in bits."""

_VALUES = ("default", "examples", "const", "enum")
"""The words of a JSON Schema that hold values of its field."""

_LEFT_OUT = "[nested too deep]"

_OURS = __name__.partition(".")[0]


class Redactor:
    """Replaces the values of fields with these names, in any depth, and `name=value` in texts. The case is ignored."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Take the names.

        Raises:
            UsageError: `names` is a single text, or a name is invalid.
        """
        words = [named(name, field="redact") for name in several(names, field="redact")]
        self._names = frozenset(word.casefold() for word in words)
        self._text = _pattern(words) if words else None

    def plain(self, value: Any) -> Any:
        """Return an answer as plain data: dicts, lists, texts, numbers and instants."""
        return self._plain(value, 0)

    def _plain(self, value: Any, depth: int) -> Any:
        if depth > DEEPEST:
            return _LEFT_OUT
        whole: Any = value
        match value:
            case None | bool():
                return value
            case str():
                return self._of_text(value)
            case int() | float() | datetime():
                return _basic(value)
            case Struct() if _is_ours(value):
                return self._of_struct(value, depth)
            case JSONSchema():
                return self._of_schema(whole)
            case dict():
                return self._of_mapping(whole, depth)
            case list() | tuple() | set() | frozenset():
                return self._of_items(whole, depth)
            case _:
                return self._of_other(value, depth)

    def _of_mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        return {self._name(name): self._of_field(name, item, depth) for name, item in value.items()}

    def _of_schema(self, value: Any) -> Any:
        """Return a schema, without the values that it has for fields with these names. The rest describes no value."""
        whole = value
        match value:
            case list():
                return [self._of_schema(item) for item in whole]
            case str():
                return _encodable(value)
            case dict():
                made: dict[str, Any] = {_encodable(name): self._of_schema(part) for name, part in whole.items()}
            case _:
                return value
        fields = made.get("properties")
        if isinstance(fields, dict):
            for name, field in cast("dict[str, Any]", fields).items():
                if name.casefold() in self._names and isinstance(field, dict):
                    words = cast("dict[str, Any]", field)
                    fields[name] = {word: part for word, part in words.items() if word not in _VALUES}
        return made

    def _of_items(self, value: Iterable[Any], depth: int) -> list[Any]:
        return [self._plain(item, depth + 1) for item in value]

    def _of_struct(self, value: Struct, depth: int) -> dict[str, Any]:
        """Return the fields of one of our records. Their names are ours, so they are not compared."""
        config = value.__struct_config__
        fields: dict[str, Any] = {}
        if config.tag_field is not None:
            fields[config.tag_field] = config.tag
        for field in _fields_of(type(value)):
            item = getattr(value, field.name)
            if not (config.omit_defaults and _is_default(field, item)):
                fields[field.encode_name] = self._plain(item, depth + 1)
        return fields

    def _of_field(self, name: Any, value: Any, depth: int) -> Any:
        # A record of ours below a name of a user is not a value of that user.
        if isinstance(name, str) and name.casefold() in self._names and not _is_ours(value):
            return REDACTED
        return self._plain(value, depth + 1)

    def _of_text(self, text: str) -> str:
        text = _encodable(text)
        return text if self._text is None else self._text.sub(_replaced, text)

    def _name(self, name: Any) -> str:
        return _encodable(name if isinstance(name, str) else repr(name))

    def _of_other(self, value: Any, depth: int) -> Any:
        if isinstance(value, bytes | bytearray | memoryview | Decimal | UUID | date | timedelta):
            return msgspec.to_builtins(value)
        whole: Any = value
        if isinstance(value, Mapping):
            return self._of_mapping(whole, depth)
        try:
            made = msgspec.to_builtins(value)
        except Exception:
            # The value comes from a codec of the user, so its own methods may raise anything.
            try:
                return self._of_text(repr(value))
            except Exception:
                return f"<{type(value).__name__}>"
        return self._plain(made, depth + 1)


@cache
def _fields_of(kind: type[Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a class of ours. To find them takes ten times as long as to read their values."""
    return msgspec.structs.fields(kind)


def _is_ours(value: object) -> bool:
    """Return True if a value is one of our records, not a Struct that a codec of the user returned."""
    return isinstance(value, Struct) and type(value).__module__.partition(".")[0] == _OURS


def _basic(value: int | float | datetime) -> int | float | datetime | str:
    """Return a number or an instant in a form that JSON can hold: of a subclass, as numpy has them, the base."""
    match value:
        case int():
            # Python refuses to write the digits of larger ones.
            return int(value) if value.bit_length() <= LONGEST_NUMBER else f"<an integer of {value.bit_length()} bits>"
        case float():
            return float(value)
        case _:
            return value if type(value) is datetime else value.isoformat()


def _encodable(text: str) -> str:
    """Return the text with a question mark for each lone surrogate, which UTF-8 cannot hold."""
    # The encoder takes no subclass.
    text = str.__str__(text)
    return text if text.isascii() else text.encode(errors="replace").decode()


def _is_default(field: msgspec.structs.FieldInfo, value: Any) -> bool:
    default = field.default
    return default is not msgspec.NODEFAULT and type(value) is type(default) and value == default


def _pattern(names: list[str]) -> re.Pattern[str]:
    """Return a pattern of `name=value`, `name: value`, `"name": "value"` and the like."""
    any_name = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    value = r"""b?"(?:[^"\\\n]|\\.)*"|b?'(?:[^'\\\n]|\\.)*'|[^\s,;&)\]}"']+"""
    return re.compile(rf"""(?<![^\W_])((?:{any_name})["']?\s*[:=]\s*)({value})""", re.IGNORECASE)


def _replaced(found: re.Match[str]) -> str:
    return f"{found[1]}{REDACTED}"
