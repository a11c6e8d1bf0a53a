"""Makes the keys of a call: from a template over its arguments, from a function of them, or from a literal key."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any, cast

from tenure.core.check import named, shown
from tenure.errors import UsageError

KeyTemplate = str | Callable[..., str | None]
"""A template such as "account:{account_id}", or a function of the call's arguments; it returns None for no key."""

CONCURRENCY = "concurrency_key"

SINGLETON = "singleton:"
"""The prefix of the key of a singleton task."""

_RESERVED = (SINGLETON, "paused:", "rate:", "unknown:")


def own_key(name: object, *, field: str = CONCURRENCY) -> str:
    """Return the key that a user chose.

    Raises:
        UsageError: it is not a valid name, or begins with a reserved prefix.
    """
    key = named(name, field=field)
    # Jobs are parked under concurrency keys and under the reserved names. Only these two kinds can collide.
    if field == CONCURRENCY and key.startswith(_RESERVED):
        raise UsageError(f"{field} = {shown(key)} begins with a reserved word ({', '.join(_RESERVED)}); choose another")
    return key


def key_template(value: object, *, field: str) -> KeyTemplate:
    """Return the template or function, checked as far as that is possible without the task.

    Raises:
        UsageError: it is neither a template nor a plain function.
    """
    if isinstance(value, str):
        return own_key(value, field=field)
    if inspect.iscoroutinefunction(value):
        raise UsageError(f"{field} = {shown(value)} is a coroutine function; make it a plain one")
    if callable(value):
        return cast(KeyTemplate, value)
    raise UsageError(f'{field} = {shown(value)} must be a template such as "account:{{account_id}}" or a function')


def literal_key(value: object, *, field: str) -> KeyTemplate:
    """Return a function that gives this literal key to every call; braces in it have no special meaning.

    Raises:
        UsageError: it is not a valid key.
    """
    key = own_key(value, field=field)
    return lambda *_, **__: key


class Arguments:
    """The arguments of a call. `named()` binds them by name, with defaults; only templates call it."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], named: Callable[[], dict[str, Any]]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.named = named


class KeyReader:
    """Makes the key of one option from a call's arguments. `field` is the option's name, for error messages.

    Raises:
        UsageError: the template is invalid, or names an argument that the task does not take.
    """

    def __init__(
        self, template: KeyTemplate, parameters: Iterable[str], *, field: str, task: str, collects: bool = False
    ) -> None:
        self._template = template
        self._field = field
        if isinstance(template, str):
            _check_fields(template, tuple(parameters), field=field, task=task, collects=collects)

    def key(self, call: Arguments) -> str | None:
        """Return the key of a call, or None if it has no key.

        Raises:
            UsageError: the template or the function fails on these arguments, or makes an invalid key.
        """
        key = evaluate(self._template, call, field=self._field)
        return None if key is None else own_key(key, field=self._field)


def evaluate(option: str | Callable[..., Any], call: Arguments, *, field: str) -> Any:
    """Apply a template or a function to a call's arguments and return the result.

    Raises:
        UsageError: it fails on these arguments.
    """
    try:
        return option.format(**call.named()) if isinstance(option, str) else option(*call.args, **call.kwargs)
    except Exception as error:
        template = option if isinstance(option, str) else getattr(option, "__name__", repr(option))
        raise UsageError(f"{field} {template!r} fails on these arguments: {shown(error)}; fix it") from error


def _check_fields(template: str, known: tuple[str, ...], *, field: str, task: str, collects: bool) -> None:
    try:
        names = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
        sizes = [spec for _, _, spec, _ in Formatter().parse(template) if spec and "{" in spec]
    except ValueError as error:
        raise UsageError(f"{field} = {shown(template)} of task {task!r} is not a template: {error}") from None
    if sizes:
        raise UsageError(
            f"{field} = {shown(template)} of task {task!r} takes a format from an argument; write the format out"
        )
    for name in names:
        first = name.split(".")[0].split("[")[0]
        if first not in known and collects:
            # A common mistake: the template names the handler's own parameter.
            raise UsageError(
                f"{field} = {shown(template)} names {first!r}, and keys of task {task!r}, which collects, are made of "
                "the "
                f"item that a call brings; write {{{known[0]}}}, or {{{known[0]}.tenant}}"
            )
        if first not in known:
            raise UsageError(
                f"{field} = {shown(template)} names {first!r}, which task {task!r} does not take; "
                f"it takes {', '.join(known) or 'nothing'}"
            )
