"""Describes the parameters of tasks as plain data, and finds changes that would break jobs enqueued before."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec import inspect as types

from tenure.client.signature import Gathers
from tenure.client.task import Task
from tenure.client.value_types import OneOfType, is_model, prepared
from tenure.errors import UsageError

Described = str | dict[str, Any]
"""A type as plain data: a word such as "int", or a dict for a compound type."""

_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")


class ParameterShape(Struct, frozen=True, omit_defaults=True):
    """One parameter. `gathers`: "one" value, "several" in a list, or "named" in a dict."""

    type: Described
    required: bool = False
    gathers: Gathers = "one"


class PayloadShape(Struct, frozen=True):
    """A task's payload: its version, and its parameters by name."""

    version: int
    parameters: dict[str, ParameterShape]


def snapshot(tasks: Mapping[str, Task[..., Any]]) -> dict[str, Any]:
    """Return the payload shapes of these tasks as data for a JSON file."""
    data: dict[str, Any] = msgspec.to_builtins({name: _shape(task) for name, task in sorted(tasks.items())})
    return data


def incompatible(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the changes from one `app.signatures()` to a later one that would break jobs enqueued in between.

    Each item is one line of text. A task whose version was raised may change freely, because its worker requires the
    migrations. A parameter with a default may be added, a type may become wider, and a nested record may lose a field.

    Raises:
        UsageError: an argument is not a snapshot.
    """
    before, after = _read(old, field="old"), _read(new, field="new")
    return [
        f"task {name!r}{change}"
        for name, shape in before.items()
        for change in _breaking_changes(shape, after.get(name))
    ]


def _read(value: object, *, field: str) -> dict[str, PayloadShape]:
    try:
        return msgspec.convert(value, dict[str, PayloadShape])
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{field} is not a snapshot of tasks: {error}; give the return value of app.signatures()"
        ) from None


def _shape(task: Task[..., Any]) -> PayloadShape:
    parameters = {
        name: ParameterShape(_describe(types.type_info(hint), ()), required, gathers)
        for name, hint, required, gathers in task.signature.accepted()
    }
    return PayloadShape(task.migrations.version, parameters)


def _breaking_changes(old: PayloadShape, new: PayloadShape | None) -> Iterator[str]:
    if new is None:
        yield " was removed: its jobs would wait for a worker that knows it"
        return
    if new.version != old.version:
        if new.version < old.version:
            yield f" goes back from version {old.version} to {new.version}: its jobs would wait for newer workers"
        return
    for name, before in old.parameters.items():
        after = new.parameters.get(name)
        if after is None:
            # A **rest of the new signature does not accept it: in a payload, **rest is an argument of its own.
            yield f": parameter {name!r} was removed"
        elif after.gathers != before.gathers:
            yield f": parameter {name!r} collects its arguments in another way"
        else:
            if after.required and not before.required:
                yield f": parameter {name!r} has no default any more"
            if not _fits(before.type, after.type):
                yield f": parameter {name!r} was {_type_text(before.type)}, and is {_type_text(after.type)}"
    for name, after in new.parameters.items():
        if name not in old.parameters and after.required:
            yield f": parameter {name!r} is new and has no default"


def _describe(kind: types.Type, within: tuple[type, ...]) -> Described:
    """Return a type as plain data. `within`: the enclosing records, to which a nested record may refer."""
    match kind:
        case types.UnionType():
            return {"any of": [_describe(item, within) for item in kind.types]}
        case types.EnumType():
            return {"one of": sorted((member.value for member in kind.cls), key=repr)}
        case types.LiteralType():
            return {"one of": sorted(kind.values, key=repr)}
        case types.DictType():
            return {"keys": _describe(kind.key_type, within), "values": _describe(kind.value_type, within)}
        case types.TupleType():
            return {"places": [_describe(item, within) for item in kind.item_types]}
        case types.NamedTupleType():
            return {"places": [_describe(item.type, within) for item in kind.fields]}
        case types.StructType() | types.DataclassType() | types.TypedDictType():
            return _record(kind, within)
        case types.Metadata():
            return _describe(kind.type, within)
        case types.CustomType(cls=cls):
            return _of_class(cls, within)
        case types.CollectionType():
            return {"items": _describe(kind.item_type, within)}
        case _:
            return _plain(kind)


def _record(kind: types.StructType | types.DataclassType | types.TypedDictType, within: tuple[type, ...]) -> Described:
    if kind.cls in within:
        return {"again": kind.cls.__name__}
    inner = (*within, kind.cls)
    fields = {
        member.encode_name: {"type": _describe(member.type, inner), "required": member.required}
        for member in kind.fields
    }
    described: dict[str, Any] = {"record": kind.cls.__name__, "fields": fields}
    if isinstance(kind, types.StructType):
        # How it is encoded, and whether unknown fields are forbidden.
        encoding = {"tag": kind.tag, "array": kind.array_like, "closed": kind.forbid_unknown_fields}
        described.update({name: value for name, value in encoding.items() if value})
    return described


def _of_class(cls: type, within: tuple[type, ...]) -> Described:
    if isinstance(cls, OneOfType):
        members = [_annotated(member, within) for member in cls.members]
        return {"any of": [*members, "none"] if cls.nullable else members}
    if is_model(cls):
        return _model(cls, within)
    return "any" if cls is object else {"class": cls.__name__}


def _model(cls: Any, within: tuple[type, ...]) -> Described:
    """Return a pydantic model like another record. It accepts its fields by their names, also those with aliases."""
    if cls in within:
        return {"again": cls.__name__}
    inner = (*within, cls)
    fields = {
        name: {"type": _annotated(field.annotation, inner), "required": field.is_required()}
        for name, field in cls.model_fields.items()
    }
    closed = {"closed": True} if cls.model_config.get("extra") == "forbid" else {}
    return {"record": cls.__name__, "fields": fields, **closed}


def _annotated(hint: Any, within: tuple[type, ...]) -> Described:
    try:
        return _describe(types.type_info(prepared(hint)), within)
    except Exception:
        # A type that only pydantic knows.
        return {"class": inspect.formatannotation(hint)}


def _plain(kind: types.Type) -> Described:
    word = type(kind).__name__.removesuffix("Type").lower()
    bounds = {name: value for name in _BOUNDS if (value := getattr(kind, name, None)) is not None}
    return {"plain": word, **bounds} if bounds else word


def _fits(old: Any, new: Any) -> bool:
    """Return True if every value that was encoded as the old type can be decoded as the new one."""
    if new in ("any", old):
        return True
    match old, new:
        case {"any of": kinds}, _:
            return all(_fits(item, new) for item in kinds)
        case _, {"any of": kinds}:
            return any(_fits(old, item) for item in kinds)
        case {"one of": before}, {"one of": after}:
            return all(item in after for item in before)
        case {"one of": before}, "str" | "int":
            return all(type(item).__name__ == new for item in before)
        case {"items": before}, {"items": after}:
            return _fits(before, after)
        case {"keys": keys, "values": values}, {"keys": new_keys, "values": new_values}:
            return _fits(keys, new_keys) and _fits(values, new_values)
        case {"places": before}, {"places": after}:
            return len(before) == len(after) and all(map(_fits, before, after))
        case {"record": _}, {"record": _}:
            return _record_fits(old, new)
        case {"plain": before}, {"plain": after}:
            return _fits(before, after) and all(old.get(name) == new[name] for name in new if name != "plain")
        case {"plain": before}, str():
            return _fits(before, new)
        case "int", "float":
            return True
        case _:
            return False


def _record_fits(old: Any, new: Any) -> bool:
    if "array" in old or "array" in new or old.get("tag") != new.get("tag"):
        # In an array every change of fields shifts positions, except at the end; that exception is not worth the code.
        return False
    before, after = old["fields"], new["fields"]
    if "closed" in new and not before.keys() <= after.keys():
        return False
    return all(
        _fits(before[name]["type"], new_field["type"]) and (before[name]["required"] or not new_field["required"])
        if name in before
        else not new_field["required"]
        for name, new_field in after.items()
    )


def _type_text(described: Described) -> str:
    return described if isinstance(described, str) else msgspec.json.encode(described).decode()
