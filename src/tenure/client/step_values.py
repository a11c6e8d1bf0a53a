"""Encodes and decodes the values of steps and the content of signals, by their types."""

import collections.abc
import functools
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

from tenure.client.codec import Codec
from tenure.client.signature import Signature
from tenure.client.value_types import ValueTypes
from tenure.core.check import shown
from tenure.errors import UsageError
from tenure.handlers.functions import unwrapped

_NAME = "value"
"""The task name of signatures that are made for a type; messages name the step instead."""

_AWAITED = (collections.abc.Awaitable, collections.abc.Coroutine)


class StepValues:
    """The types of one app, and its codec."""

    def __init__(self, codec: Codec, types: ValueTypes) -> None:
        self._codec, self._types = codec, types
        self._cached = functools.lru_cache(maxsize=512)(self._new)

    def of_type(self, kind: Any, what: str) -> "StepType":
        """Return how values of a type are encoded. `what`: the step or signal, for messages.

        Raises:
            UsageError: values of this type cannot be decoded.
        """
        try:
            signature = self._cached(kind)
        except TypeError:
            # The annotation cannot be hashed.
            signature = self._new(kind)
        except UsageError as error:
            raise _about(error, what) from None
        return StepType(signature, self._codec, what)

    def returned_by(self, function: Callable[..., Any], what: str) -> "StepType":
        """Return how the values of a function are encoded: as its annotation says, else as plain data.

        Raises:
            UsageError: the annotation cannot be read, or values of this type cannot be decoded.
        """
        return self.of_type(_returned(function, what), what)

    def encode(self, value: object, what: str) -> bytes:
        """Return a value whose type is known to its reader only, as bytes.

        Raises:
            UsageError: it cannot be encoded.
        """
        try:
            data: object = self._codec.encode(self._types.plain(value))
        except Exception as error:
            raise UsageError(f"{what} cannot be encoded: {error}; pass plain data, or a type of the app") from error
        if type(data) is not bytes:
            raise UsageError(f"{type(self._codec).__name__}.encode() must return bytes, not {type(data).__name__}")
        return data

    def _new(self, kind: Any) -> Signature:
        def value() -> Any: ...

        value.__annotations__ = {"return": kind}
        signature = Signature(_NAME, value)
        signature.use(self._types)
        return signature


class StepType:
    """A type, and how its values are encoded."""

    def __init__(self, signature: Signature, codec: Codec, what: str) -> None:
        self._signature, self._codec, self._what = signature, codec, what

    def encode(self, value: object) -> bytes:
        """Return a value as bytes, after checking that it can be decoded.

        Raises:
            UsageError: it does not fit the type, cannot be encoded, or is over 1 MiB.
        """
        try:
            return self._signature.encode_result(self._codec, value)
        except UsageError as error:
            raise _about(error, self._what) from error
        except Exception as error:
            raise UsageError(f"{self._what} has a value that cannot be encoded: {error}; return plain data") from error

    def decode(self, body: bytes) -> Any:
        """Return the value. Any exception means that it does not fit the type."""
        return self._signature.result(self._codec, body)


def _about(error: UsageError, what: str) -> UsageError:
    """Return an error of a signature with the name of the step."""
    text = str(error).removeprefix(f"task {_NAME!r}: ").replace("the handler's return", "its return")
    return UsageError(f"{what}: {text}")


def _returned(function: Callable[..., Any], what: str) -> Any:
    """Return the type of the values of a function; Any if it has no annotation."""
    target = inspect.unwrap(unwrapped(function))
    annotation = getattr(target, "__annotations__", {}).get("return", Any)
    if not isinstance(annotation, str) and get_origin(annotation) not in _AWAITED and not get_args(annotation):
        return None if annotation is type(None) else annotation
    try:
        alone = SimpleNamespace(__annotations__={"return": annotation})
        names = getattr(target, "__globals__", {})
        hint = get_type_hints(alone, names, include_extras=True).get("return", Any)
    except Exception:
        raise UsageError(
            f"{what}: the return annotation {shown(annotation)} of its function cannot be read at run time; import the "
            "names in it, not only for type checkers, and define its classes outside of functions"
        ) from None
    return get_args(hint)[-1] if get_origin(hint) in _AWAITED else hint
