"""Checks values in positions without a type: only plain data is accepted, which is equal after JSON decoding.

    None, True, False, int, finite float, str, list, dict with str keys: unchanged
    tuple: decoded as a list, as in `json`
    all else: refused, with the path to the value

The positions without a type are found once, when a task is defined. Typed positions are not checked, except a float
that may also be None: JSON has no NaN and would decode it as None.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, cast

from msgspec import inspect as types

from tenure.core.check import shown

Check = Callable[[Any], None]
"""A function that raises RefusedError for a value that would not be equal after decoding."""

LARGEST_BITS = 14_280
"""The most bits of an integer that Python converts to text and back; it refuses more than 4,300 digits."""


class RefusedError(Exception):
    """A value would not be equal after decoding. `what` describes it, `path` leads to it from the outside in.

    `kind`: the annotation with which it would be equal; None if no annotation does that.
    """

    def __init__(self, what: str, kind: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.kind = kind
        self.path = ""

    def under(self, step: str) -> "RefusedError":
        """Return this error with one step put before its path."""
        self.path = step + self.path
        return self


class NotFiniteError(RefusedError):
    """A float is NaN or an infinity, which JSON cannot express."""

    def __init__(self, value: float) -> None:
        super().__init__(f"{value!r}, which JSON cannot express")


def check_of(hint: Any) -> Check | None:
    """Return a check for the values of a hint, or None if every value is equal after decoding or is refused there."""
    if hint is object:
        return check_plain
    try:
        described = types.type_info(hint)
    except Exception:
        # The codec cannot convert to this type, so its values arrive as plain data.
        return check_plain
    return _Checks().of(described)


def check_plain(value: Any) -> None:
    """Check that a value is plain data.

    Raises:
        RefusedError: it is not plain data.
    """
    try:
        _check_plain(value)
    except RecursionError:
        raise RefusedError("nested too deeply, or in a circle") from None


def _check_plain(value: Any) -> None:
    kind = cast(Any, type(value))
    if kind is str:
        _check_text(value)
    elif kind is float:
        _check_finite(value)
    elif kind is int:
        if value.bit_length() > LARGEST_BITS:
            raise RefusedError("an integer of more than 4,300 digits")
    elif kind is list or kind is tuple:
        for index, item in enumerate(value):
            if type(item) is str and item.isascii():
                # The usual case; this test is cheaper than a call.
                continue
            try:
                _check_plain(item)
            except RefusedError as refused:
                raise refused.under(f"[{index}]") from None
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise _other_key(key)
            if type(item) is str and item.isascii() and key.isascii():
                continue
            try:
                _check_text(key)
                _check_plain(item)
            except RefusedError as refused:
                raise refused.under(f"[{shown(key)}]") from None
    elif kind is not bool and value is not None:
        raise RefusedError(_named(value), type(value).__name__)


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RefusedError("a text with a lone surrogate, which UTF-8 cannot hold") from None


def _check_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise NotFiniteError(value)


def _other_key(key: object) -> RefusedError:
    description = f"a dict with the key {shown(key)}, which is {_named(key)} and not a text"
    return RefusedError(description, f"dict[{type(key).__name__}, ...]")


def _named(value: object) -> str:
    name = type(value).__name__
    if isinstance(value, Enum):
        return f"a member of the enum {name}"
    if hasattr(type(value), "__dataclass_fields__"):
        return f"the dataclass {name}"
    bases: tuple[type, ...] = (dict, list, tuple, str, int, float)
    for base in bases:
        if type(value) not in bases and issubclass(type(value), base):
            return f"{_article(name)} {name}, a subclass of {base.__name__}"
    return f"{_article(name)} {name}"


def _article(name: str) -> str:
    return "an" if name[:1].lower() in "aeiou" else "a"


class _Checks:
    """Makes the checks of one hint. Classes with fields may refer to each other in cycles."""

    def __init__(self) -> None:
        self._records: dict[Any, _Record] = {}

    def of(self, described: Any) -> Check | None:
        match described:
            case types.AnyType():
                return check_plain
            case types.CustomType(cls=cls):
                return check_plain if cls is object else None
            case types.Metadata(type=inner):
                return self.of(inner)
            case types.UnionType(types=members):
                return self._of_union(members)
            case types.ListType() | types.SetType() | types.FrozenSetType() | types.VarTupleType():
                return each_item(self.of(described.item_type))
            case types.TupleType(item_types=kinds):
                return _places([self.of(kind) for kind in kinds])
            case types.DictType(key_type=keys, value_type=values):
                return each_value(self.of(values), plain_keys=isinstance(keys, types.AnyType))
            case types.StructType() | types.DataclassType() | types.TypedDictType() | types.NamedTupleType():
                return self._of_record(described)
            case _:
                return None

    def _of_union(self, members: Iterable[Any]) -> Check | None:
        several = tuple(members)
        checks = [check for member in several if (check := self.of(member)) is not None]
        if _is_nullable_float(several):
            checks.append(_check_finite)
        if not checks:
            return None

        def checked(value: Any) -> None:
            # Each check ignores values of another shape.
            for candidate in checks:
                candidate(value)

        return checked

    def _of_record(self, described: Any) -> Check | None:
        known = self._records.get(described.cls)
        if known is not None:
            return known
        if not _is_open(described, set()):
            return None
        record = self._records[described.cls] = _Record()
        for field in described.fields:
            check = self.of(field.type)
            if check is not None:
                record.fields.append((field.name, field.encode_name, check))
        return record


class _Record:
    """Checks the fields of a class, in its objects and in dicts given instead of them."""

    def __init__(self) -> None:
        self.fields: list[tuple[str, str, Check]] = []

    def __call__(self, value: Any) -> None:
        for name, encoded, check in self.fields:
            inner = _entry(value, encoded) if isinstance(value, Mapping) else getattr(value, name, None)
            if inner is None:
                continue
            try:
                check(inner)
            except RefusedError as refused:
                raise refused.under(f".{name}") from None


def _parts(described: Any) -> "tuple[Any, ...]":
    return tuple(described)


def _entry(value: Any, name: str) -> Any:
    return value.get(name)


def _is_open(described: Any, visited: set[Any]) -> bool:
    """Return True if a value of this type may contain a part without a type, or a float that may be None."""
    match described:
        case types.AnyType():
            return True
        case types.CustomType(cls=cls):
            return cls is object
        case types.UnionType(types=members) if _is_nullable_float(members):
            return True
        case types.StructType() | types.DataclassType() | types.TypedDictType() | types.NamedTupleType():
            if described.cls in visited:
                return False
            visited.add(described.cls)
            return any(_is_open(field.type, visited) for field in described.fields)
        case types.Type():
            nested: list[Any] = [getattr(described, name) for name in described.__struct_fields__]
            return any(_is_open(inner, visited) for inner in nested)
        case tuple():
            return any(_is_open(inner, visited) for inner in _parts(described))
        case _:
            return False


def _is_nullable_float(members: Iterable[Any]) -> bool:
    kinds: set[Any] = {type(member) for member in members}
    return types.FloatType in kinds and types.NoneType in kinds


def is_same(value: Any, back: Any) -> bool:
    """Return True if a decoded value equals the original; tuples may have become lists.

    Objects that compare by identity count as equal if they have the same class.
    """
    kind = cast(Any, type(value))
    if kind in (list, tuple):
        return type(back) in (kind, list) and len(value) == len(back) and all(map(is_same, value, back))
    if kind is not type(back):
        return False
    if kind is dict:
        return value.keys() == back.keys() and all(is_same(inner, back[key]) for key, inner in value.items())
    return bool(value == back) or _compares_by_identity(value)


def _compares_by_identity(value: Any) -> bool:
    return value.__class__.__eq__ is object.__eq__


def each_item(check: Check | None) -> Check | None:
    """Return a check for each item of a list, tuple or set."""
    if check is None:
        return None

    def checked(value: Any) -> None:
        if isinstance(value, list | tuple | set | frozenset):
            for index, item in enumerate(cast("Iterable[Any]", value)):
                try:
                    check(item)
                except RefusedError as refused:
                    raise refused.under(f"[{index}]") from None

    return checked


def _places(checks: list[Check | None]) -> Check | None:
    if not any(checks):
        return None

    def checked(value: Any) -> None:
        if isinstance(value, list | tuple):
            for index, (check, item) in enumerate(zip(checks, cast("Iterable[Any]", value), strict=False)):
                if check is not None:
                    try:
                        check(item)
                    except RefusedError as refused:
                        raise refused.under(f"[{index}]") from None

    return checked


def each_value(check: Check | None, *, plain_keys: bool = False) -> Check | None:
    """Return a check for each value of a dict; with `plain_keys`, also that its keys are strings."""
    if not plain_keys and check is None:
        return None

    def checked(value: Any) -> None:
        if isinstance(value, dict):
            for key, item in cast("Mapping[Any, Any]", value).items():
                if plain_keys and type(key) is not str:
                    raise _other_key(key)
                if check is not None:
                    try:
                        check(item)
                    except RefusedError as refused:
                        raise refused.under(f"[{shown(key)}]") from None

    return checked
