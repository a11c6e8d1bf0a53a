"""Which key a call takes a slot of: named by a template over its arguments, by a function of them, or outright."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any, cast

from holdfast.core.check import named, shown
from holdfast.errors import UsageError

ConcurrencyKey = str | Callable[..., str | None]
"""A template such as "account:{account_id}", or a function of the call's arguments; None from it means no key."""

SINGLETON = "singleton:"
"""What the key of a singleton task begins with."""

_RESERVED = (SINGLETON, "paused:")


def own_key(name: object, *, field: str = "concurrency_key") -> str:
    """Return the name of a key that a user chose.

    Raises:
        UsageError: it is no name, or one of those that the queue gives itself.
    """
    key = named(name, field=field)
    if key.startswith(_RESERVED):
        raise UsageError(
            f"{field} = {shown(key)} begins with a word that is taken ({', '.join(_RESERVED)}); choose another"
        )
    return key


def keyed(given: object, parameters: Iterable[str], *, task: str) -> ConcurrencyKey:
    """Return a task's key, having made sure that its template can be filled.

    Raises:
        UsageError: it is neither template nor function, or the template names what the task does not take.
    """
    known = tuple(parameters)
    if inspect.iscoroutinefunction(given):
        raise UsageError(
            f"concurrency_key = {shown(given)} of task {task!r} is a coroutine function; make it a plain one"
        )
    if callable(given):
        return cast(ConcurrencyKey, given)
    if not isinstance(given, str):
        raise UsageError(
            f'concurrency_key = {shown(given)} must be a template such as "account:{{account_id}}" or a function'
        )
    try:
        asked = [field for _, field, _, _ in Formatter().parse(given) if field is not None]
        sizes = [spec for _, _, spec, _ in Formatter().parse(given) if spec and "{" in spec]
    except ValueError as error:
        raise UsageError(f"concurrency_key = {shown(given)} of task {task!r} is no template: {error}") from None
    if sizes:
        raise UsageError(
            f"concurrency_key = {shown(given)} of task {task!r} lets an argument say how to format; write that out"
        )
    for field in asked:
        first = field.split(".")[0].split("[")[0]
        if first not in known:
            raise UsageError(
                f"concurrency_key = {shown(given)} names {first!r}, which task {task!r} does not take; "
                f"it takes {', '.join(known) or 'nothing'}"
            )
    return own_key(given)


def key_of(
    key: ConcurrencyKey, args: tuple[Any, ...], kwargs: Mapping[str, Any], arguments: Callable[[], dict[str, Any]]
) -> str | None:
    """Return the key of one call, None for none.

    Raises:
        UsageError: the template or the function fails on these arguments, or what comes of it is no name.
    """
    try:
        made = key.format(**arguments()) if isinstance(key, str) else key(*args, **kwargs)
    except Exception as error:
        told = key if isinstance(key, str) else getattr(key, "__name__", repr(key))
        raise UsageError(f"concurrency_key {told!r} fails on these arguments: {shown(error)}; mend it") from error
    return None if made is None else own_key(made)
