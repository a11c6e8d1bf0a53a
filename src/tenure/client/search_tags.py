"""Makes tags from the arguments of a call, by the option `search` of its task: `customer:7`, `order.id:1234`."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any, cast
from uuid import UUID

import msgspec
from msgspec import inspect as types

from tenure.client.signature import Gathers, Signature
from tenure.client.value_types import is_model
from tenure.core.check import shown
from tenure.core.suggestion import did_you_mean
from tenure.core.text import storable
from tenure.errors import UsageError

TAGS = 100
"""The most tags of a job."""

TAG_BYTES = 1024
"""The greatest length of a tag."""

_SCALARS = (str, int, UUID, Decimal, date, Enum)
_WANTED = "a text, a whole number, a bool, a UUID, a Decimal, a date or datetime, or an enum of these"
_ANY = types.AnyType()


class SearchTags:
    """Reads the values of a task's search fields from the arguments of its calls."""

    def __init__(self, task: str, paths: Iterable[str]) -> None:
        self._task = task
        self._paths = [(path, path.split(".")) for path in paths]

    def check(self, signature: Signature) -> None:
        """Check the paths.

        Raises:
            UsageError: a path names an argument or a field that does not exist, or one that cannot be a tag.
        """
        arguments: dict[str, tuple[Any, Gathers]] = {
            name: (kind, gathers) for name, kind, _, gathers in signature.accepted()
        }
        for path, steps in self._paths:
            self._check(path, steps, arguments)

    def added(self, tags: tuple[str, ...], arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the tags of a call: those that it was given, and those of its search fields.

        `arguments`: as the handler gets them, with defaults. A value of None makes no tag, and neither does a value
        that a dict does not have.

        Raises:
            UsageError: a value cannot be a tag, or the job would have more than 100 tags.
        """
        new: list[str] = []
        for path, steps in self._paths:
            text = self._text(path, steps, arguments)
            if text is not None and (tag := self._tag(path, text)) not in tags:
                new.append(tag)
        if len(tags) + len(new) > TAGS:
            raise UsageError(
                f"task {self._task!r}: the job would have {len(tags) + len(new):,} tags, {len(new)} of them by search, "
                f"and a job may have {TAGS}; give the call fewer tags"
            )
        return (*tags, *new)

    def _text(self, path: str, steps: list[str], arguments: Mapping[str, Any]) -> str | None:
        value: Any = arguments
        for step in steps:
            if value is None:
                return None
            if isinstance(value, Mapping):
                value = cast("Mapping[str, Any]", value).get(step)
            elif hasattr(value, step):
                value = getattr(value, step)
            else:
                raise self._refused(path, f"reads {step!r} of {shown(value)}, which has no such field")
        if value is None:
            return None
        plain = msgspec.to_builtins(value) if isinstance(value, _SCALARS) else value
        match plain:
            case bool():
                return "true" if plain else "false"
            case str() | int():
                return str(plain)
            case _:
                raise self._refused(path, f"is {shown(value)}, which is not {_WANTED}")

    def _tag(self, path: str, text: str) -> str:
        tag = f"{path}:{text}"
        if (size := len(tag.encode(errors="replace"))) > TAG_BYTES:
            raise self._refused(path, f"makes a tag of {size:,} bytes, and the limit is {TAG_BYTES:,}")
        if storable(tag) != tag:
            raise self._refused(path, f"makes the tag {shown(tag)}, which has NUL or lone surrogates")
        return tag

    def _refused(self, path: str, problem: str) -> UsageError:
        return UsageError(
            f"task {self._task!r}: search field {path!r} {problem}; search by another value, or take {path!r} out of "
            "the task's search"
        )

    def _check(self, path: str, steps: list[str], found: Mapping[str, tuple[Any, Gathers]]) -> None:
        name, *rest = steps
        if name not in found:
            meant = did_you_mean(name, found) or f"; it takes {', '.join(found) or 'nothing'}"
            raise UsageError(f"search = {path!r} names {name!r}, which task {self._task!r} does not take{meant}")
        hint, gathers = found[name]
        if gathers == "several":
            raise UsageError(
                f"search = {path!r} names *{name} of task {self._task!r}, which is not one value; take it out"
            )
        kind: types.Type = types.type_info(hint)
        if gathers == "named":
            kind = types.DictType(types.StrType(), kind)
        read = [name]
        for step in rest:
            kind = self._field(_without_none(kind), step, path, ".".join(read))
            read.append(step)
        kind = _without_none(kind)
        has_fields = isinstance(kind, _WITH_FIELDS) or (isinstance(kind, types.CustomType) and is_model(kind.cls))
        if has_fields or isinstance(kind, _NO_TAG):
            raise UsageError(
                f"search = {path!r} of task {self._task!r} is not {_WANTED}; name "
                f"{'one of its fields' if has_fields else 'another argument'}"
            )

    def _field(self, kind: types.Type, step: str, path: str, read: str) -> types.Type:
        """Return the type of a field; any type if it is not known."""
        match kind:
            case types.DictType():
                return kind.value_type
            case types.StructType() | types.DataclassType() | types.NamedTupleType() | types.TypedDictType():
                fields = {field.name: field.type for field in kind.fields}
            case types.CustomType() if is_model(kind.cls):
                fields = dict.fromkeys(cast(Any, kind.cls).model_fields, cast(types.Type, _ANY))
            case types.AnyType() | types.CustomType() | types.UnionType():
                return _ANY
            case _:
                raise UsageError(f"search = {path!r}: {read!r} of task {self._task!r} has no fields; write {read!r}")
        if step in fields:
            return fields[step]
        if not isinstance(kind, types.TypedDictType) and hasattr(kind.cls, step):
            # A property.
            return _ANY
        meant = did_you_mean(step, fields) or f"; it has {', '.join(fields) or 'none'}"
        raise UsageError(f"search = {path!r}: {read!r} of task {self._task!r} has no field {step!r}{meant}")


_WITH_FIELDS = (
    types.DictType,
    types.StructType,
    types.DataclassType,
    types.NamedTupleType,
    types.TypedDictType,
)
_NO_TAG = (types.CollectionType, types.TupleType, types.FloatType, types.BytesType)


def _without_none(kind: types.Type) -> types.Type:
    """Return the only type of a union besides None; another type as it is."""
    if not isinstance(kind, types.UnionType):
        return kind
    known = list(_known_members(kind))
    return known[0] if len(known) == 1 else kind


def _known_members(kind: types.UnionType) -> Iterator[types.Type]:
    return (member for member in kind.types if not isinstance(member, types.NoneType))
