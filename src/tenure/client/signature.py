"""A task's signature: encodes and checks the arguments of a call, decodes them for the handler, checks results."""

import hashlib
import inspect
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from inspect import Parameter
from types import GenericAlias, NoneType, SimpleNamespace
from typing import Any, Literal, get_type_hints

import msgspec
from msgspec import inspect as types
from msgspec import structs

from tenure.client.codec import Codec, JsonCodec
from tenure.client.untyped import (
    Check,
    NotFiniteError,
    RefusedError,
    check_of,
    check_plain,
    each_item,
    each_value,
    is_same,
)
from tenure.client.value_types import ValueTypes, customs, has_custom_keys, prepared, refuse_unsupported
from tenure.core.check import shown
from tenure.core.frames import unframed
from tenure.core.suggestion import did_you_mean
from tenure.errors import PayloadTooLargeError, UsageError
from tenure.handlers.functions import POSITIONAL, unwrapped
from tenure.handlers.injection import Injected, injections

Gathers = Literal["one", "several", "named"]
"""How a payload stores a parameter: "one" value, "several" in a list (*args), or "named" in a dict (**kwargs)."""

PAYLOAD_LIMIT = 1024 * 1024
"""The largest payload or result, in bytes."""

ITEM = "item"
"""The name of the only parameter that a call of a collecting task has."""

_ONE = inspect.Signature([Parameter(ITEM, Parameter.POSITIONAL_OR_KEYWORD)])


class Signature:
    """The parameters and the return type of a task."""

    def __init__(self, task: str, function: Callable[..., Any], *, collects: bool = False) -> None:
        self.task = task
        self.collects = collects
        """True if a call brings one item and the handler takes a list of items."""
        try:
            self._full_signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise UsageError(f"task {task!r}: {error}; wrap it in a function with named parameters") from None
        self._injected = injections(self._full_signature.parameters.values(), owner=f"task {task!r}")
        self._signature = _without_injected(self._full_signature, self._injected)
        parameters = self._signature.parameters.values()
        self._kinds = [(parameter.name, parameter.kind) for parameter in parameters]
        self._names = tuple(parameter.name for parameter in parameters)
        all_by_place = all(kind in POSITIONAL for _, kind in self._kinds)
        self._all_required = all_by_place and all(map(_required, parameters))
        self._positional_count = len(self._kinds) if all_by_place and not collects else None
        """The number of arguments of a call that passes all of them by position; None if that is impossible."""
        # Encodes to the same JSON as a dict of the arguments, without making the dict.
        self._arguments_struct = msgspec.defstruct("Given", self._names)
        hints = _hints(function if hasattr(function, "__wrapped__") else unwrapped(function))
        _refuse_annotated_injections(hints, task)
        hints = {name: prepared(hint) for name, hint in hints.items() if name not in self._injected}
        self._check_readable(hints)
        for name, hint in hints.items():
            refuse_unsupported(hint, what=self._subject(name))
        self._types = ValueTypes()
        self._annotations = hints
        self._record = msgspec.defstruct(
            "Arguments",
            [_field(parameter, hints) for parameter in parameters],
            forbid_unknown_fields=True,
            kw_only=True,
        )
        self._hints = {name: _known(hints.get(name, Any)) for name, _ in self._kinds}
        self._returns = _known(hints.get("return", Any))
        self._special = frozenset(name for name, hint in hints.items() if _is_special(hint))
        """The parameters, and "return", of types that the codec does not know."""
        self._special_arguments = not self._special <= {"return"}
        self._special_result = "return" in self._special
        # Of these, msgspec converts the keys only as it decodes JSON.
        self._custom_keys = any(has_custom_keys(types.type_info(hint)) for hint in hints.values())
        self._checks = _checks(parameters, hints)
        """For each parameter that may take such values: finds a value that would not survive encoding and decoding."""
        self._check_result = check_of(hints.get("return", Any))
        # JSON is decoded and converted in one step; another codec returns plain data, which is converted afterwards.
        self._record_of_json = msgspec.json.Decoder(self._record, dec_hook=self._decoded).decode
        self._result_of_json = msgspec.json.Decoder(self._returns, dec_hook=self._decoded).decode
        if collects:
            self._check_takes_list(hints)

    def use(self, known: ValueTypes) -> None:
        """Encode and decode values of the types that an app knows.

        Raises:
            UsageError: a parameter or the result is of a type that cannot be decoded.
        """
        for name in sorted(self._special):
            known.check(self._annotations[name], what=self._subject(name))
        self._types = known

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the arguments of a call."""
        return (ITEM,) if self.collects else tuple(name for name, _ in self._kinds)

    @property
    def record(self) -> type:
        """The class of which a payload is the encoded object: the arguments by name."""
        return self._record

    @property
    def returns(self) -> Any:
        """The type of the result; Any if it is not known."""
        return self._returns

    def plain_defaults(self) -> dict[str, Any]:
        """Return the defaults of parameters as plain data, those that JSON can hold."""
        found: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            if parameter.default is not parameter.empty:
                with suppress(Exception):
                    found[name] = msgspec.json.decode(msgspec.json.encode(self._types.plain(parameter.default)))
        return found

    @property
    def for_callers(self) -> inspect.Signature:
        """The signature for callers: without injected parameters, and parameters after those are keyword-only."""
        return self._signature

    def check_injected(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check that a call of the plain function passes the values that a worker would inject.

        Raises:
            UsageError: an injected value is missing.
        """
        if not self._injected:
            return
        try:
            passed = self._full_signature.bind(*args, **kwargs).arguments
        except TypeError:
            # The call of the function raises a better error.
            return
        missing = [f"{name}=..." for name in self._injected if name not in passed]
        if missing:
            raise UsageError(
                f"task {self.task!r} is called as a function, and only a worker injects values; pass "
                f"{', '.join(missing)}"
            )

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return a call's arguments by name, including defaults.

        Raises:
            TypeError: they do not fit the signature.
        """
        bound = (_ONE if self.collects else self._signature).bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def from_plain(self, data: dict[str, Any] | list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call from plain data, by name or in order, as the types of the signature.

        Raises:
            UsageError: they do not fit the signature; the message names the task and the argument.
        """
        called = _ONE if self.collects else self._signature
        try:
            named = called.bind(*data).arguments if isinstance(data, list) else self._kept_names(data)
            if self.collects:
                named = {self._kinds[0][0]: [named[ITEM]]}
            args, kwargs = self.decode(JsonCodec(), JsonCodec().encode(named))
        except Exception as error:
            raise UsageError(f"task {self.task!r}: {_named_error(error)}; its signature is {called}") from None
        return ((args[0][0],) if self.collects else args), kwargs

    def _kept_names(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return arguments by name as a payload stores them: those for `**rest` in a dict of their own."""
        rest = next((name for name, kind in self._kinds if kind is Parameter.VAR_KEYWORD), None)
        unknown = {name: value for name, value in data.items() if name not in self.parameters}
        if unknown and rest is None:
            name = next(iter(unknown))
            raise TypeError(f"it takes no argument {name!r}{did_you_mean(name, self.parameters).rstrip('?')}")
        required = [ITEM] if self.collects else [name for name, _, needed, _ in self.accepted() if needed]
        if missing := [name for name in required if name not in data]:
            raise TypeError(f"the argument {missing[0]!r} is missing")
        known = {name: value for name, value in data.items() if name not in unknown}
        return known if rest is None or not unknown else {**known, rest: {**known.get(rest, {}), **unknown}}

    def digest(self, codec: Codec, payload: bytes) -> str:
        """Return a digest of encoded arguments, including defaults; equal arguments have equal digests.

        It is made from the decoded values, because two encodings of one value may differ.

        Raises:
            UsageError: an argument cannot be turned into plain data for the digest.
        """
        read = self._read(codec, payload)
        values: dict[str, Any] = {}
        for field in structs.fields(self._record):
            value = getattr(read, field.name)
            if value is msgspec.UNSET:
                value = self._default(field)
            if value is not msgspec.UNSET:
                values[field.name] = value
        try:
            plain = self._types.comparable(values)
        except Exception as error:
            raise UsageError(
                f"task {self.task!r} is unique by its arguments, and these cannot be compared: {error}; "
                'name the arguments that count: unique="report:{customer}", or Unique(key=...)'
            ) from error
        return hashlib.blake2b(plain, digest_size=16).hexdigest()

    def encode(self, codec: Codec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return a call's arguments as bytes, after checking that a worker can decode them.

        Raises:
            UsageError: the arguments do not fit the signature or cannot be encoded, or the codec did not return bytes.
                The message names the task and the argument, or the codec.
            PayloadTooLargeError: the bytes are more than 1 MiB.
        """
        for name in kwargs:
            if name in self._injected:
                raise UsageError(f"task {self.task!r}: {name!r} is injected by the worker; leave it out")
        arguments: Any
        try:
            if self._all_required and len(args) == self._positional_count and not kwargs and type(codec) is JsonCodec:
                # The fast path for the usual call: no dict, and no `bind`, which takes three times as long as a dict.
                # It needs a signature without defaults, because a record leaves out an argument that is UNSET.
                arguments = self._arguments_struct(*args)
            else:
                arguments = self._bound(args, kwargs)
        except TypeError as error:
            called = _ONE if self.collects else self._signature
            raise UsageError(f"task {self.task!r}: {error}; its signature is {called}") from None
        try:
            payload = codec.encode(self._types.plain(arguments) if self._special_arguments else arguments)
        except Exception as error:
            bound = self._bound(args, kwargs)
            refused = self._first_lossy(codec, bound)
            subject = self._unencodable(codec, bound) if refused is None else f"argument {refused[0]!r}"
            # A ValueError is about the value, such as a lone surrogate: no annotation helps.
            by_value = isinstance(error, ValueError) if refused is None else refused[2].kind is None
            remedy = "pass another value" if by_value else "annotate the parameter with the type, or pass plain data"
            raise UsageError(f"task {self.task!r}: {subject} cannot be encoded ({error}); {remedy}") from error
        if self._checks and (changed := self._first_lossy(codec, self._bound(args, kwargs))) is not None:
            path, name, refused_for = changed
            raise UsageError(
                f"task {self.task!r}: argument {path!r} is {refused_for.what}, and would not come back equal; "
                f"{self._remedy(name, refused_for)}"
            )
        self._check_bytes(codec, payload)
        if len(payload) > PAYLOAD_LIMIT:
            raise PayloadTooLargeError(self.task, len(payload), PAYLOAD_LIMIT)
        try:
            read = self._read(codec, payload)
        except Exception as error:
            problem = _not_finite(self._bound(args, kwargs)) or _named_error(error)
            raise UsageError(f"task {self.task!r}: {problem}; its signature is {self._signature}") from None
        if self._special_arguments:
            for name, value in self._bound(args, kwargs).items():
                difference = self._types.difference(value, getattr(read, name), name)
                if difference is not None:
                    raise UsageError(
                        f"task {self.task!r}: argument {difference}; change the type so that it decodes what it "
                        "encodes, or pass plain data"
                    )
        return payload

    def decode_batch(
        self, codec: Codec, payload: bytes, count: int, upgrade: Callable[[Any], Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the handler with, for a job that has collected `count` calls.

        The payload holds one frame per call, each with a list of one item. Any exception means that it cannot be
        decoded.
        """
        frames = unframed(payload)
        if len(frames) != count:
            raise ValueError(f"the payload holds {len(frames)} of the {count} collected calls")
        items: list[Any] = []
        for frame in frames:
            args, _ = self.decode(codec, frame, upgrade)
            items.extend(args[0])
        return (items,), {}

    def decode(
        self, codec: Codec, payload: bytes, upgrade: Callable[[Any], Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the handler with. Any exception means that the payload cannot be decoded.

        `upgrade`: upgrades the plain data of an older payload, which is then checked like any other.
        """
        read = self._read(codec, payload, upgrade)
        if self._all_required:
            return structs.astuple(read), {}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for index, (name, kind) in enumerate(self._kinds):
            value = getattr(read, name)
            if value is msgspec.UNSET:
                continue
            match kind:
                case Parameter.POSITIONAL_ONLY | Parameter.POSITIONAL_OR_KEYWORD:
                    # After an omitted default only keywords can follow; the handler's own default fills the gap.
                    if len(args) == index:
                        args.append(value)
                    else:
                        kwargs[name] = value
                case Parameter.VAR_POSITIONAL:
                    args.extend(value)
                case Parameter.VAR_KEYWORD:
                    kwargs.update(value)
                case Parameter.KEYWORD_ONLY:
                    kwargs[name] = value
        for name in self._injected:
            if name in kwargs:
                # Only a parameter such as **rest can have let it in.
                raise ValueError(f"the payload has {name!r}, which is injected")
        return tuple(args), kwargs

    def encode_result(self, codec: Codec, value: Any) -> bytes:
        """Return a result as bytes, after checking that the caller can decode it.

        Raises:
            UsageError: the result is over 1 MiB or does not fit the annotation, or the codec did not return bytes. Any
                other exception means that it cannot be encoded.
        """
        if value is not None and self._check_result is not None:
            self._check_lossless(codec, value, self._check_result)
        data = codec.encode(self._plain_result(value))
        self._check_bytes(codec, data)
        if len(data) > PAYLOAD_LIMIT:
            raise UsageError(
                f"the result takes {len(data):,} bytes, the limit is {PAYLOAD_LIMIT:,}; return a reference"
            )
        if self._returns is Any or (value is None and self._returns is NoneType):
            return data
        try:
            read = self.result(codec, data)
        except Exception as error:
            try:
                data = codec.encode(self._plain_result(_as_annotated(value, types.type_info(self._returns))))
                read = self.result(codec, data)
            except Exception:
                raise UsageError(
                    f"task {self.task!r}: the result does not fit the handler's return annotation: {error}; fix one "
                    "of them"
                ) from None
        if self._special_result and (difference := self._types.difference(value, read, "result")) is not None:
            raise UsageError(
                f"task {self.task!r}: {difference}; change the type so that it decodes what it encodes, or return "
                "plain data"
            )
        return data

    def _plain_result(self, value: Any) -> Any:
        return self._types.plain(value) if self._special_result else value

    def _first_lossy(self, codec: Codec, arguments: dict[str, Any]) -> tuple[str, str, RefusedError] | None:
        """Return the path of a value that would not be equal after decoding, its parameter, and the reason, or None."""
        for name, check in self._checks.items():
            if name not in arguments:
                continue
            try:
                check(arguments[name])
            except RefusedError as refused:
                if not _round_trips(codec, arguments[name]):
                    return name + refused.path, name, refused
        return None

    @staticmethod
    def _remedy(name: str, refused: RefusedError) -> str:
        if refused.kind is None:
            return "pass another value"
        return f"annotate the parameter ({name}: {refused.kind}), or pass plain data"

    def _check_lossless(self, codec: Codec, value: Any, check: Check) -> None:
        try:
            check(value)
        except RefusedError as refused:
            if _round_trips(codec, value):
                return
            remedy = "return another value" if refused.kind is None else f"annotate it (-> {refused.kind})"
            raise UsageError(
                f"task {self.task!r}: {'result' + refused.path!r} is {refused.what}, and would not come back equal; "
                f"{remedy}, or return plain data"
            ) from None

    def _check_bytes(self, codec: Codec, data: object) -> None:
        # A subclass of bytes is refused too: it may override methods.
        if type(data) is not bytes:
            raise UsageError(
                f"task {self.task!r}: {type(codec).__name__}.encode() must return bytes, not {type(data).__name__}"
            )

    def result(self, codec: Codec, data: bytes) -> Any:
        """Return a result as the annotated type. Any exception means that it cannot be decoded."""
        if type(codec) is JsonCodec:
            return self._result_of_json(data)
        read = codec.decode(data)
        if self._custom_keys:
            return self._result_of_json(msgspec.json.encode(read))
        return self._converted(read, self._returns)

    def accepted(self) -> Iterator[tuple[str, Any, bool, Gathers]]:
        """Yield each parameter: name, type (Any if it cannot be checked), True if required, and how it is stored."""
        for name, parameter in self._signature.parameters.items():
            yield name, self._hints[name], _required(parameter), _stored(parameter)

    def mismatch(self, promise: "Signature") -> str | None:
        """Return how this signature breaks the declared one, or None if it matches.

        It matches if it accepts every call that the declared one accepts, and returns the same type. Additional
        parameters must have a default. Types that the codec cannot check are not compared.
        """
        own_parameters, promised_parameters = self._signature.parameters, promise._signature.parameters
        for name, promised in promised_parameters.items():
            own = own_parameters.get(name)
            if own is None or _stored(own) != _stored(promised):
                return f"it does not take {promised}"
            if _required(own) and not _required(promised):
                return f"it requires {name!r}, which callers may leave out"
            if not _same_type(self._hints[name], promise._hints[name]):
                return f"it takes {own}, not {promised}"
        for name, own in own_parameters.items():
            if name not in promised_parameters and _required(own):
                return f"it requires {own}, which is not declared"
        if not _same_type(self._returns, promise._returns):
            return f"it returns {_type_text(self._returns)}, not {_type_text(promise._returns)}"
        return None

    def _read(self, codec: Codec, payload: bytes, upgrade: Callable[[Any], Any] | None = None) -> Any:
        if upgrade is None and type(codec) is JsonCodec:
            return self._record_of_json(payload)
        data = codec.decode(payload)
        if upgrade is not None:
            data = upgrade(data)
        return (
            self._record_of_json(msgspec.json.encode(data))
            if self._custom_keys
            else self._converted(data, self._record)
        )

    def _decoded(self, cls: Any, data: Any) -> Any:
        return self._types.decode(cls, data)

    def _converted(self, data: Any, kind: Any) -> Any:
        # JSON has only strings as keys of a dict.
        return msgspec.convert(data, kind, str_keys=True, dec_hook=self._decoded)

    def _subject(self, name: str) -> str:
        return f"task {self.task!r}: the result" if name == "return" else f"task {self.task!r}: parameter {name!r}"

    def _default(self, field: structs.FieldInfo) -> Any:
        """Return the default of an omitted argument as a worker would decode it, or UNSET if it cannot be encoded."""
        try:
            default = self._types.plain(self._signature.parameters[field.name].default)
            # Encoded and decoded, because only JSON makes a list of a tuple.
            return self._converted(msgspec.json.decode(msgspec.json.encode(default)), field.type)
        except Exception:
            return msgspec.UNSET

    def _check_readable(self, hints: dict[str, Any]) -> None:
        annotated = {parameter.name: parameter.annotation for parameter in self._signature.parameters.values()}
        annotated["return"] = self._full_signature.return_annotation
        for name, annotation in annotated.items():
            if annotation is Parameter.empty or name in hints:
                continue
            if isinstance(annotation, str):
                raise UsageError(
                    f"{self._subject(name)} is annotated {shown(annotation)}, which cannot be read at run time; import "
                    "the names in it, not only for type checkers, and define its classes outside of functions"
                )
            # A decorator has set it as part of a signature of its own.
            hints[name] = prepared(annotation)

    def _check_takes_list(self, hints: dict[str, Any]) -> None:
        remedy = "a task that collects takes one list of items: async def index(docs: list[Doc])"
        if len(self._kinds) != 1 or self._kinds[0][1] not in POSITIONAL:
            raise UsageError(f"task {self.task!r} takes {self._signature}, and {remedy}")
        name = self._kinds[0][0]
        described = types.type_info(_known(hints.get(name, Any)))
        if not isinstance(described, types.ListType | types.AnyType):
            raise UsageError(f"task {self.task!r}: {name!r} is {shown(hints[name])}, and {remedy}")

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) == self._positional_count and not kwargs:
            return dict(zip(self._names, args, strict=True))
        if self.collects:
            return {self._kinds[0][0]: [_ONE.bind(*args, **kwargs).arguments[ITEM]]}
        return self._signature.bind(*args, **kwargs).arguments

    def _unencodable(self, codec: Codec, arguments: dict[str, Any]) -> str:
        for name, value in arguments.items():
            try:
                codec.encode(self._types.plain(value) if self._special_arguments else value)
            except Exception:
                return f"argument {name!r}"
        return "the arguments"


def _without_injected(whole: inspect.Signature, injected: Container[str]) -> inspect.Signature:
    """Return a signature without injected parameters; parameters after those become keyword-only."""
    parameters: list[Parameter] = []
    passed = False
    for parameter in whole.parameters.values():
        if parameter.name in injected:
            passed = True
        elif passed and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
        else:
            parameters.append(parameter)
    return whole.replace(parameters=parameters)


def _refuse_annotated_injections(hints: dict[str, Any], task: str) -> None:
    for name, hint in hints.items():
        if any(isinstance(metadata, Injected) for metadata in getattr(hint, "__metadata__", ())):
            # Type checkers know from a default that callers may leave the parameter out.
            raise UsageError(f"task {task!r}: {name!r} is injected by its annotation; write {name}: ... = Inject(...)")


def _field(parameter: Parameter, hints: dict[str, Any]) -> tuple[str, Any] | tuple[str, Any, Any]:
    kind = _known(hints.get(parameter.name, Any))
    match parameter.kind:
        case parameter.VAR_POSITIONAL:
            return parameter.name, GenericAlias(list, kind), msgspec.field(default_factory=list[Any])
        case parameter.VAR_KEYWORD:
            return parameter.name, GenericAlias(dict, (str, kind)), msgspec.field(default_factory=dict[str, Any])
        case _ if parameter.default is not parameter.empty:
            return parameter.name, kind | msgspec.UnsetType, msgspec.UNSET
        case _:
            return parameter.name, kind


def _checks(parameters: Iterable[Parameter], hints: dict[str, Any]) -> dict[str, Check]:
    found: dict[str, Check] = {}
    for parameter in parameters:
        check = check_of(hints.get(parameter.name, Any))
        if parameter.kind is parameter.VAR_POSITIONAL:
            check = each_item(check)
        elif parameter.kind is parameter.VAR_KEYWORD:
            check = each_value(check)
        if check is not None:
            found[parameter.name] = check
    return found


def _not_finite(arguments: dict[str, Any]) -> str | None:
    """Return which argument holds NaN or an infinity, or None. JSON encodes these as null."""
    for name, value in arguments.items():
        try:
            check_plain(value)
        except NotFiniteError as refused:
            return f"argument {name + refused.path!r} is {refused.what}"
        except RefusedError:
            continue
    return None


def _round_trips(codec: Codec, value: Any) -> bool:
    """Return True if the app's own codec decodes this value to an equal one; False for JSON."""
    if type(codec) is JsonCodec:
        return False
    try:
        return is_same(value, codec.decode(codec.encode(value)))
    except Exception:
        return False


def _stored(parameter: Parameter) -> Gathers:
    """Return how a payload stores a parameter: as itself, in a list, or in a dict."""
    match parameter.kind:
        case parameter.VAR_POSITIONAL:
            return "several"
        case parameter.VAR_KEYWORD:
            return "named"
        case _:
            return "one"


def _required(parameter: Parameter) -> bool:
    return parameter.default is parameter.empty and _stored(parameter) == "one"


def _same_type(first: Any, second: Any) -> bool:
    return first is Any or second is Any or types.type_info(first) == types.type_info(second)


def _type_text(hint: Any) -> str:
    return "nothing that can be checked" if hint is Any else inspect.formatannotation(hint)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function by name, without those that cannot be read at run time."""
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:
        # A name exists only for type checkers. The other annotations are read one by one.
        names = getattr(inspect.unwrap(function), "__globals__", {})
    found: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        annotated = SimpleNamespace(__annotations__={name: annotation})
        with suppress(Exception):
            found.update(get_type_hints(annotated, names, include_extras=True))
    return found


def _known(hint: Any) -> Any:
    """Return the hint, or Any for `object`: both mean a value of any type."""
    return Any if hint is object else hint


def _is_special(hint: Any) -> bool:
    return any(cls is not object for cls in customs(types.type_info(hint)))


def _as_annotated(value: Any, described: types.Type) -> Any:
    """Return a value as the class of its annotation, if it is of a subclass that is encoded differently.

    For type checkers a bool is an int, a datetime is a date, and a Struct is its base. This applies in lists, dicts and
    unions too.
    """
    items: Any = value
    match described:
        case types.IntType() | types.FloatType() if isinstance(value, bool):
            return int(value)
        case types.DateType() if isinstance(value, datetime):
            return value.date()
        case types.StructType() if isinstance(value, described.cls):
            # A subclass has another tag, or fields that its base forbids.
            return described.cls(**{name: getattr(value, name) for name in described.cls.__struct_fields__})
        case types.UnionType():
            fitting = (_as_annotated(value, kind) for kind in described.types)
            return next((converted for converted in fitting if converted is not value), value)
        case types.CollectionType() if isinstance(value, list | tuple | set | frozenset):
            return [_as_annotated(item, described.item_type) for item in items]
        case types.TupleType() if isinstance(value, tuple):
            return [_as_annotated(item, kind) for item, kind in zip(items, described.item_types, strict=True)]
        case types.DictType() if isinstance(value, dict):
            return {name: _as_annotated(item, described.value_type) for name, item in items.items()}
        case _:
            return value


def _named_error(error: Exception) -> str:
    """Return msgspec's error message with the argument's name instead of a JSON path."""
    text = str(error)
    before, mark, path = text.rpartition(" - at `$.")
    return f"argument {path.rstrip('`')!r}: {before}" if mark else text
