"""Checks data against the JSON Schemas that workers publish.

It knows the words that msgspec and pydantic use for types, fields, lengths and limits. It leaves `format`, `pattern`
and any word that it does not know to the worker: a job whose arguments a worker cannot read fails as undecodable.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import ge, gt, le, lt
from typing import Any, cast

from msgspec import Struct

from tenure.core.check import shown
from tenure.core.suggestion import did_you_mean

PROBLEMS = 20
"""How many problems one check names."""

STEPS = 50_000
"""How many values and alternatives one check looks at. Nested alternatives multiply."""

DEEPEST = 100
"""How deep the checked data may be nested."""

_KINDS: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_WORDS = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (ge, "at least"),
    "maximum": (le, "at most"),
    "exclusiveMinimum": (gt, "greater than"),
    "exclusiveMaximum": (lt, "less than"),
}
_SIZES: Mapping[str, tuple[type, bool, str]] = {
    "minLength": (str, True, "characters"),
    "maxLength": (str, False, "characters"),
    "minItems": (list, True, "items"),
    "maxItems": (list, False, "items"),
    "minProperties": (dict, True, "fields"),
    "maxProperties": (dict, False, "fields"),
}


class SchemaProblem(Struct, frozen=True):
    """A part of the data that does not fit. `pointer`: its place, as a JSON pointer."""

    pointer: str
    message: str


class _TooManyStepsError(Exception):
    pass


def problems(data: object, schema: Mapping[str, Any]) -> list[SchemaProblem]:
    """Return what in plain data does not fit a schema, up to `PROBLEMS` parts."""
    check, found = _Check(schema), list[SchemaProblem]()
    try:
        for problem in check.of(data, schema, "", 0):
            found.append(problem)
            if len(found) == PROBLEMS:
                break
    except _TooManyStepsError:
        found.append(SchemaProblem("", "it is too large or nested too deep to be checked; enqueue it by code"))
    return found


class _Check:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._definitions: Mapping[str, Any] = root.get("$defs", {})
        self._steps = 0

    def of(self, data: Any, schema: Any, pointer: str, depth: int) -> Iterator[SchemaProblem]:
        """Yield what does not fit."""
        self._steps += 1
        if self._steps > STEPS or depth > DEEPEST:
            raise _TooManyStepsError
        if not isinstance(schema, Mapping):
            if schema is False:
                yield SchemaProblem(pointer, "it must be left out")
            return
        words, whole = cast("Mapping[str, Any]", schema), data
        if "$ref" in words:
            yield from self.of(data, self._definitions.get(_name_of(words["$ref"]), True), pointer, depth + 1)
        for part in words.get("allOf", ()):
            yield from self.of(data, part, pointer, depth + 1)
        for word in ("anyOf", "oneOf"):
            if word in words:
                yield from self._one_of(data, words[word], pointer, depth)
        if (problem := _of_value(data, words)) is not None:
            yield SchemaProblem(pointer, problem)
        elif isinstance(data, dict):
            yield from self._fields(whole, words, pointer, depth)
        elif isinstance(data, list):
            yield from self._items(whole, words, pointer, depth)

    def _one_of(self, data: Any, parts: list[Any], pointer: str, depth: int) -> Iterator[SchemaProblem]:
        if any(next(self.of(data, part, pointer, depth + 1), None) is None for part in parts):
            return
        others = [part for part in parts if part != {"type": "null"}]
        if len(others) == 1 and data is not None:
            yield from self.of(data, others[0], pointer, depth + 1)
        else:
            yield SchemaProblem(pointer, f"{shown(data)} fits none of the {len(parts)} kinds that are accepted here")

    def _fields(
        self, data: dict[str, Any], words: Mapping[str, Any], pointer: str, depth: int
    ) -> Iterator[SchemaProblem]:
        fields: Mapping[str, Any] = words.get("properties", {})
        others = words.get("additionalProperties", True)
        for name in words.get("required", ()):
            if name not in data:
                yield SchemaProblem(pointer, f"{name!r} is missing")
        for name, value in data.items():
            place = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
            if name in fields:
                yield from self.of(value, fields[name], place, depth + 1)
            elif others is False:
                yield SchemaProblem(place, f"{name!r} is unknown{did_you_mean(name, fields).rstrip('?')}")
            else:
                yield from self.of(value, others, place, depth + 1)

    def _items(self, data: list[Any], words: Mapping[str, Any], pointer: str, depth: int) -> Iterator[SchemaProblem]:
        first: list[Any] = words.get("prefixItems", [])
        others = words.get("items", True)
        for number, item in enumerate(data):
            part = first[number] if number < len(first) else others
            yield from self.of(item, part, f"{pointer}/{number}", depth + 1)


def _of_value(data: Any, words: Mapping[str, Any]) -> str | None:
    """Return why a value does not fit, apart from its fields and items; None if it does."""
    whole: Any = data
    kinds = words.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if kinds and not any(_is(data, kind) for kind in kinds):
        return f"{shown(data)} is not {' or '.join(_WORDS.get(kind, kind) for kind in kinds)}"
    if "const" in words and not _equal(data, words["const"]):
        return f"{shown(data)} is not {words['const']!r}"
    if "enum" in words and not any(_equal(data, each) for each in words["enum"]):
        return f"{shown(data)} is unknown; use one of {', '.join(map(shown, words['enum']))}"
    if isinstance(data, int | float) and not isinstance(data, bool):
        for word, (holds, meaning) in _LIMITS.items():
            if word in words and not holds(data, words[word]):
                return f"{shown(data)} must be {meaning} {words[word]}"
    for word, (kind, least, unit) in _SIZES.items():
        if word in words and isinstance(data, kind):
            limit, size = words[word], len(whole)
            if size < limit if least else size > limit:
                return f"it has {size} {unit}, and {'at least' if least else 'at most'} {limit} are needed"
    return None


def _is(data: object, kind: str) -> bool:
    if kind not in _KINDS:
        return True
    if isinstance(data, bool):
        return kind == "boolean"
    # A worker reads 3.0 as a whole number.
    return isinstance(data, _KINDS[kind]) or (kind == "integer" and isinstance(data, float) and data.is_integer())


def _equal(one: object, other: object) -> bool:
    # In Python True equals 1.
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _name_of(reference: str) -> str:
    return reference.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")
