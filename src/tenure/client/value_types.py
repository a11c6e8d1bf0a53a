"""Types of arguments and results beyond plain data: pydantic models, paths, IP addresses, and an app's own types.

    value ──encode──► plain data ──codec──► bytes ──codec──► plain data ──decode──► value of the annotated class

A codec sees plain data only. This module never imports pydantic: a model exists only if its program did.
"""

import functools
import inspect
import ipaddress
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    Never,
    NoReturn,
    ParamSpecArgs,
    ParamSpecKwargs,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec
from msgspec import inspect as types

from tenure.client.untyped import is_same
from tenure.core.check import shown
from tenure.errors import UsageError

TypeHooks = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""Two functions for a class: one returns a value as plain data, the other makes a value of the plain data."""

AS_TEXT: tuple[type, ...] = (
    PurePath,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
)
"""Classes whose values are encoded as their text."""

_TEXTS = (
    types.StrType
    | types.BytesType
    | types.ByteArrayType
    | types.MemoryViewType
    | types.DateTimeType
    | types.DateType
    | types.TimeType
    | types.TimeDeltaType
    | types.UUIDType
    | types.DecimalType
    | types.EnumType
    | types.LiteralType
)
"""Types of msgspec that may be encoded as text."""

_DICTS = types.DictType | types.StructType | types.DataclassType | types.TypedDictType
"""Types of msgspec that are encoded as a dict."""

_REMEDY = "use plain data, a dataclass, a TypedDict, a msgspec.Struct or a pydantic model"

_LEAST_PYDANTIC = "2.11"
"""The first version that can decode a model by the names of its fields, also of those with aliases."""

_UNCHECKED = (ParamSpecArgs, ParamSpecKwargs)


class OneOfType(type):
    """The class of the classes that stand for a union that msgspec does not support: `Order | Invoice`."""

    hint: Any
    members: tuple[Any, ...]
    nullable: bool

    def __instancecheck__(cls, value: object) -> bool:
        # msgspec asks this about a decoded value. `ValueTypes.decode` has made it of one of the members.
        return True

    def __eq__(cls, decoded: object) -> bool:
        return isinstance(decoded, OneOfType) and cls.hint == decoded.hint

    def __hash__(cls) -> int:
        return hash(cls.members)


class _UnionParts(NamedTuple):
    """The members of a union by how they are decoded. `rest`: those that msgspec knows."""

    own: list[Any]
    texts: list[Any]
    models: list[Any]
    rest: list[Any]


class ValueTypes:
    """The types that an app knows in addition to those of msgspec.

    `own`: the app's own classes, each with its two functions.

    Raises:
        UsageError: `own` does not map classes to pairs of functions.
    """

    def __init__(self, own: Mapping[type, TypeHooks] | None = None) -> None:
        self._own = {} if own is None else _checked(own)

    def encode(self, value: Any) -> Any:
        """Return a value as plain data; msgspec calls this for each value whose type it does not know.

        Raises:
            TypeError: the type is not known here either.
        """
        return self._encode(value, _dumped)

    def decode(self, hint: Any, data: Any) -> Any:
        """Return plain data as a value of a class; msgspec calls this for each annotation that it does not know.

        Raises:
            ValueError: the data is not such a value. A function of the app may raise any exception.
        """
        cls = get_origin(hint) or hint
        if isinstance(cls, OneOfType):
            return self._decode_one_of(cls, data)
        if cls is object or isinstance(data, cls):
            # A codec or a migration has made the value itself.
            return data
        if cls in self._own:
            return self._own[cls][1](data)
        if issubclass(cls, AS_TEXT):
            if type(data) is not str:
                raise ValueError(f"a {cls.__name__} is encoded as text, not as {shown(data)}")
            return cls(data)
        return _validated(cls.model_validate_json, data)

    def plain(self, value: Any) -> Any:
        """Return a value with all its parts as plain data.

        Raises:
            Exception: a part cannot be encoded.
        """
        return msgspec.to_builtins(value, str_keys=True, enc_hook=self.encode)

    def comparable(self, value: Any) -> bytes:
        """Return a value as bytes that are the same for equal values, in any order of their sets.

        Raises:
            Exception: a part cannot be encoded.
        """
        hook = functools.partial(self._encode, dumped=_dumped_in_order)
        return _ORDERED.encode(msgspec.to_builtins(_ordered(value, hook), str_keys=True, enc_hook=hook))

    def check(self, hint: Any, *, what: str) -> None:
        """Check that each part of an annotation is of a type that can be decoded.

        Raises:
            UsageError: a part is not. The message names `what`, the type and the remedy.
        """
        for cls in customs(types.type_info(hint)):
            self._check_class(cls, what)

    def difference(self, sent: Any, read: Any, path: str) -> str | None:
        """Return which part of a decoded value differs from the value that was sent, and how; None if none does.

        Only values that msgspec does not know are compared, at any depth.
        """
        cls = cast(Any, type(sent))
        # Aliases, because an `isinstance` narrows a variable to a type that the type checkers know in part only.
        original: Any = sent
        decoded: Any = read
        if is_model(cls):
            return self._model_difference(sent, read, path)
        if isinstance(sent, AS_TEXT):
            return None if original == decoded else _changed(original, decoded, path)
        if any(known in self._own for known in cls.__mro__):
            return None if is_same(original, decoded) else _changed(original, decoded, path)
        pairs: Iterable[tuple[str, Any, Any]] = ()
        names = getattr(cls, "__dataclass_fields__", None) or getattr(cls, "__struct_fields__", None)
        if names is not None:
            pairs = ((f"{path}.{name}", getattr(original, name, None), getattr(decoded, name, None)) for name in names)
        elif isinstance(sent, Mapping) and isinstance(read, Mapping):
            if any(_is_known_type(key) and key not in decoded for key in original):
                return f"{path} has keys that would not come back equal"
            pairs = ((f"{path}[{key!r}]", value, decoded.get(key)) for key, value in original.items())
        elif isinstance(sent, set | frozenset):
            if any(map(_is_known_type, original)) and original != decoded:
                return _changed(original, decoded, path)
        elif isinstance(sent, list | tuple) and isinstance(read, list | tuple):
            both = enumerate(zip(original, decoded, strict=False))
            pairs = ((f"{path}[{place}]", item, back) for place, (item, back) in both)
        return next((found for where, item, back in pairs if (found := self.difference(item, back, where))), None)

    def _encode(self, value: Any, dumped: Callable[[Any], Any]) -> Any:
        cls = cast(Any, type(value))
        for known in cls.__mro__:
            if known in self._own:
                return self._own[known][0](value)
        if isinstance(value, AS_TEXT):
            return str(value)
        if is_model(cls):
            return dumped(value)
        raise TypeError(f"objects of type {cls.__name__} are not supported")

    def _decode_one_of(self, cls: OneOfType, data: Any) -> Any:
        if data is None and cls.nullable:
            return None
        parts = self._parts(cls)
        readers: list[Callable[[], Any]] = []
        if parts.rest:
            # First, because the other members may accept plain data: `Fraction | int` must leave 5 an int. An object
            # that is taken for plain data is refused at enqueue.
            rest = _union(parts.rest)
            readers.append(functools.partial(msgspec.convert, data, rest, str_keys=True, dec_hook=self.decode))
        readers += [functools.partial(self.decode, member, data) for member in (*parts.own, *parts.texts)]
        if parts.models:
            adapter = _adapter(cls.hint if len(parts.models) == len(cls.members) else _union(parts.models))
            readers.append(functools.partial(_validated, adapter.validate_json, data))
        errors: list[str] = []
        for read in readers:
            try:
                return read()
            except Exception as error:
                errors.append(str(error))
        raise ValueError(", and ".join(errors))

    def _parts(self, cls: OneOfType) -> "_UnionParts":
        parts = _UnionParts([], [], [], [])
        for member in cls.members:
            known = get_origin(member) or member
            if not _is_custom(member):
                parts.rest.append(member)
            elif known in self._own:
                parts.own.append(member)
            elif issubclass(known, AS_TEXT):
                parts.texts.append(member)
            else:
                parts.models.append(member)
        return parts

    def _check_class(self, cls: type, what: str) -> None:
        if isinstance(cls, OneOfType):
            self._check_union(cls, what)
            return
        if cls is object or cls in self._own or issubclass(cls, AS_TEXT):
            return
        name = cls.__qualname__
        if is_model(cls):
            if "by_name" not in inspect.signature(cast(Any, cls).model_validate_json).parameters:
                raise UsageError(
                    f"{what} is of type {name}, a model of an old pydantic; install pydantic {_LEAST_PYDANTIC} or later"
                )
            return
        if is_old_model(cls):
            raise UsageError(
                f"{what} is of type {name}, a model of pydantic 1, which is not supported; make it a model of "
                "pydantic 2"
            )
        if cls.__module__ == "collections.abc":
            raise UsageError(
                f"{what} is of type {name}, which cannot be decoded; write list[...], or another collection"
            )
        raise UsageError(
            f"{what} is of type {name}, which cannot be decoded; {_REMEDY}, or give the app functions for the type: "
            f"Tenure(types={{{cls.__name__}: (to_plain, from_plain)}})"
        )

    def _check_union(self, cls: OneOfType, what: str) -> None:
        parts = self._parts(cls)
        described = [types.type_info(hint) for hint in parts.rest]
        for known in (*parts.models, *(inner for part in described for inner in customs(part))):
            self._check_class(known, what)
        has_path = any(issubclass(known, PurePath) for known in parts.texts)
        unclear = None
        if (has_path and len(parts.texts) > 1) or (parts.texts and any(isinstance(part, _TEXTS) for part in described)):
            unclear = "text"
        elif parts.models and any(isinstance(part, _DICTS) for part in described):
            unclear = "a dict"
        if unclear is not None:
            raise UsageError(
                f"{what} is annotated {_text_of(cls.hint)}, and several of these types are encoded as {unclear}, so a "
                "worker cannot tell them apart; use one of them"
            )

    def _model_difference(self, sent: Any, read: Any, path: str) -> str | None:
        cls = cast(Any, type(sent))
        back = cast(Any, type(read))
        if cls is not back:
            if not is_model(back):
                return f"{path} is of the class {cls.__name__}, and would come back as {shown(read)}"
            return (
                f"{path} is of the class {cls.__name__}, and would come back as {back.__name__}, as which it is "
                "annotated"
            )
        for name in cls.model_fields:
            original, decoded = getattr(sent, name, None), getattr(read, name, None)
            found = self.difference(original, decoded, f"{path}.{name}")
            if found is not None:
                return found
            if not is_same(original, decoded) and original != decoded:
                return _changed(original, decoded, f"{path}.{name}")
        if sent.__pydantic_private__ != read.__pydantic_private__:
            names = ", ".join(sent.__pydantic_private__ or ())
            return f"{path} has private attributes ({names}), which are not encoded"
        return None if sent == read else f"{path} would not come back equal"


def prepared(hint: Any, within: tuple[Any, ...] = ()) -> Any:
    """Return a hint that msgspec supports, in which a `OneOfType` stands for each union that it does not support.

    A union among the fields of a class cannot be replaced. `within`: the type aliases around this hint; one that refers
    to itself means any value there.
    """
    if type(hint).__name__ == "TypeAliasType":
        return Any if any(hint is alias for alias in within) else prepared(hint.__value__, (*within, hint))
    if isinstance(hint, _UNCHECKED) or hint is NoReturn or hint is Never:
        return Any
    origin: Any = get_origin(hint)
    parts = cast(Any, get_args(hint))
    if origin is None:
        return hint
    if origin is Annotated:
        inner = parts[0]
        is_union = get_origin(inner) in (Union, UnionType)
        replaced = _replaced_union(inner, within, whole=hint) if is_union else prepared(inner, within)
        if replaced is inner:
            return hint
        return replaced if isinstance(replaced, OneOfType) else Annotated[(replaced, *hint.__metadata__)]
    if origin in (Union, UnionType):
        return _replaced_union(hint, within, whole=hint)
    changed = [prepared(part, within) if _is_hint(part) else part for part in parts]
    if all(new is old for new, old in zip(changed, parts, strict=True)):
        return hint
    return origin[tuple(changed) if len(changed) > 1 else changed[0]]


def customs(described: Any) -> Iterator[type]:
    """Yield the classes within a type that msgspec does not know; those of fields count, too."""
    return (part.cls for part in _parts(described) if isinstance(part, types.CustomType))


def has_custom_keys(described: Any) -> bool:
    """Return True if a dict within a type has keys of a class that msgspec does not know."""
    return any(isinstance(part, types.DictType) and any(customs(part.key_type)) for part in _parts(described))


def refuse_unsupported(hint: Any, *, what: str) -> None:
    """Check that msgspec supports an annotation, or takes it for a class that `ValueTypes` may know.

    Raises:
        UsageError: it does not. The message names `what`, the annotation and the remedy.
    """
    try:
        types.type_info(hint)
    except Exception as error:
        reason = str(error).partition(" - type")[0]
        raise UsageError(
            f"{what} is annotated {_text_of(hint)}, which cannot be decoded: {reason}; {_REMEDY}"
        ) from None


def is_model(cls: object) -> bool:
    """Return True if this is a class of models of pydantic 2."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return isinstance(cls, type) and base is not None and issubclass(cls, base) and hasattr(cls, "model_validate_json")


def is_old_model(cls: type) -> bool:
    """Return True if this is a class of models of pydantic 1, or of the module `pydantic.v1` of pydantic 2."""
    return not is_model(cls) and any(
        base.__name__ == "BaseModel" and base.__module__.startswith("pydantic.") for base in cls.__mro__
    )


_ORDERED = msgspec.json.Encoder(order="deterministic")


def _replaced_union(hint: Any, within: tuple[Any, ...], *, whole: Any) -> Any:
    """Return a union as it is, or with its members prepared, or the `OneOfType` that stands for it.

    `whole`: the union with what it is annotated with, for example with a discriminator.
    """
    parts = get_args(hint)
    changed = [prepared(part, within) for part in parts]
    inner = [part for part in changed if isinstance(part, OneOfType)]
    members = [part for part in changed if part is not NoneType and part not in inner]
    if len(members) + len(inner) > 1 and (inner or any(map(_is_custom, members))):
        members += (member for part in inner for member in part.members)
        nullable = NoneType in changed or any(part.nullable for part in inner)
        return OneOfType(_text_of(hint), (), {"hint": whole, "members": tuple(members), "nullable": nullable})
    return hint if all(new is old for new, old in zip(changed, parts, strict=True)) else _union(changed)


def _parts(described: Any) -> Iterator[Any]:
    """Yield a type and all types within it, each once."""
    seen: set[int] = set()
    waiting: list[Any] = [described]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, types.Type | types.Field):
            yield part
            waiting.extend(getattr(part, name) for name in part.__struct_fields__ if name != "default")
        elif isinstance(part, tuple):
            waiting.extend(cast(Any, part))


def _union(members: Iterable[Any]) -> Any:
    return Union[tuple(members)]  # noqa: UP007 - their number is not known here


def _is_hint(part: object) -> bool:
    # The arguments of a Literal are values, and those of a Callable may be a list.
    named = type(part).__name__ == "TypeAliasType"
    return named or isinstance(part, type) or get_origin(part) is not None or isinstance(part, _UNCHECKED)


def _is_custom(hint: Any) -> bool:
    try:
        described = types.type_info(hint)
    except Exception:
        return False
    return isinstance(described, types.CustomType) and described.cls is not object


def _is_known_type(value: object) -> bool:
    return isinstance(value, AS_TEXT) or is_model(type(value))


def _changed(sent: Any, read: Any, path: str) -> str:
    if type(sent) is type(read) and shown(sent) != shown(read):
        return f"{path} is {shown(sent)}, and would come back as {shown(read)}"
    if type(sent) is type(read):
        return f"{path} is of the class {type(sent).__name__}, whose value is not encoded"
    return f"{path} is of the class {type(sent).__name__}, and would come back as {shown(read)}"


def _dumped(model: Any) -> Any:
    # By name, because a field may have one alias to read and another to write. The check after the encoding finds each
    # value that does not come back, so warnings of the dump would say it twice.
    return model.model_dump(mode="json", round_trip=True, by_alias=False, warnings=False)


def _dumped_in_order(model: Any) -> Any:
    """Return a model as plain data with each set as a sorted list: the order of a set differs between processes."""
    python = model.model_dump(mode="python", round_trip=True, by_alias=False, warnings=False)
    return _sorted_like(python, _dumped(model))


def _sorted_like(python: Any, dumped: Any) -> Any:
    """Return dumped data with each list sorted that was dumped from a set."""
    values: Any = python
    data: Any = dumped
    if isinstance(python, set | frozenset) and isinstance(dumped, list):
        return sorted(data, key=_ORDERED.encode)
    if isinstance(python, Mapping) and isinstance(dumped, dict) and len(values) == len(data):
        both = zip(values.values(), data.items(), strict=True)
        return {key: _sorted_like(value, item) for value, (key, item) in both}
    if isinstance(python, list | tuple) and isinstance(dumped, list) and len(values) == len(data):
        return [_sorted_like(value, item) for value, item in zip(values, data, strict=True)]
    return data


def _ordered(value: Any, hook: Callable[[Any], Any]) -> Any:
    """Return a value whose sets are lists, sorted by their encoded items, which need not be comparable themselves."""
    match value:
        case set() | frozenset():
            items = [_ordered(item, hook) for item in cast("set[Any]", value)]
            return sorted(
                (msgspec.to_builtins(item, str_keys=True, enc_hook=hook) for item in items), key=_ORDERED.encode
            )
        case list() | tuple():
            return [_ordered(item, hook) for item in cast("list[Any]", value)]
        case dict():
            return {key: _ordered(item, hook) for key, item in cast("Mapping[Any, Any]", value).items()}
        case _:
            return value


def _validated(validate: Callable[..., Any], data: Any) -> Any:
    try:
        # In JSON mode, a strict model accepts the texts that stand for dates and the like.
        return validate(msgspec.json.encode(data), by_alias=True, by_name=True)
    except ValueError as error:
        listed = getattr(error, "errors", None)
        if listed is None:
            raise
        found = listed(include_url=False, include_input=False, include_context=False)
        text = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'the value'}: {each['msg']}" for each in found)
        raise ValueError(text) from None


@functools.lru_cache(maxsize=256)
def _adapter(hint: Any) -> Any:
    return cast(Any, sys.modules["pydantic"]).TypeAdapter(hint)


def _text_of(hint: Any) -> str:
    return inspect.formatannotation(hint)


def _checked(own: object) -> dict[type, TypeHooks]:
    remedy = "give a dict of classes: types={Money: (str, Money)}, each with a function to plain data and one back"
    if not isinstance(own, Mapping):
        raise UsageError(f"types = {shown(own)} is not a dict; {remedy}")
    known: dict[type, TypeHooks] = {}
    for cls, hooks in cast(Any, own).items():
        if not isinstance(cls, type):
            raise UsageError(f"types has {shown(cls)}, which is not a class; {remedy}")
        if not isinstance(hooks, tuple) or [callable(hook) for hook in cast(Any, hooks)] != [True, True]:
            raise UsageError(f"types[{cls.__name__}] = {shown(cast(Any, hooks))} is not a pair of functions; {remedy}")
        if cls is object or not _is_custom(cls):
            raise UsageError(f"types has {cls.__name__}, which is encoded without functions; leave it out")
        known[cls] = hooks
    return known
