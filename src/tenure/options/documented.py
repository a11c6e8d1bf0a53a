"""Shows the options that a function takes as `**options` in its signature and docstring, for `help()` and editors."""

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class _NotSet:
    """The shown default of an option that may be left out."""

    def __repr__(self) -> str:
        return "<not set>"


def lists_options(options: type[Any], *, described_by: type[Any]) -> Callable[[F], F]:
    """Return a decorator for a function whose `**options` are the keys of a TypedDict.

    `help()` and `inspect.signature` then list them, and the docstring has the list of options of `described_by`.
    """

    def document(function: F) -> F:
        signature = inspect.signature(function)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD]
        listed = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=_NotSet(), annotation=kind)
            for name, kind in options.__annotations__.items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *listed])
        summary, raises, errors = (inspect.getdoc(function) or "").partition("Raises:\n")
        # Under `python -OO` there are no docstrings.
        _, begins, listing = (inspect.getdoc(described_by) or "").partition("- `")
        function.__doc__ = f"{summary}Options:\n\n{begins}{listing}\n\n{raises}{errors}"
        return function

    return document
