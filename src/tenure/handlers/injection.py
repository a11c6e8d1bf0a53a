"""Injected values: a parameter's default names a provider, which the worker calls once per run.

    async def handler(user: int, db: Session = Inject(get_db))
                                                 └─ get_db(pool: Pool = Inject(get_pool))
                                                                            └─ get_pool(job = Inject(current_job))

`needs` turns such a tree into steps in dependency order. The worker opens them in this order, closes them in reverse.
"""

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from tenure.core.check import shown
from tenure.errors import UsageError
from tenure.handlers.functions import is_async, unwrapped

if TYPE_CHECKING:
    from contextlib import (
        _AsyncGeneratorContextManager,  # pyright: ignore[reportPrivateUsage]
        _GeneratorContextManager,  # pyright: ignore[reportPrivateUsage]
    )

T = TypeVar("T")


class SupportsClose(Protocol):
    """An object with a `close` method."""

    def close(self) -> object:
        """Close the object."""
        ...


class SupportsAclose(Protocol):
    """An object with an async `aclose` method."""

    def aclose(self) -> object:
        """Close the object."""
        ...


C = TypeVar("C", bound=SupportsClose | SupportsAclose)

Provider = Callable[..., Any]

Kind = Literal["function", "coroutine function", "generator", "async generator"]
"""How a provider is called. A generator function that contextlib has decorated counts as a generator."""


class Injected:
    """The marker that `Inject` leaves as a parameter's default; the worker passes the provider's value instead."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def __repr__(self) -> str:
        return f"Inject({_name(self.provider)})"


# A function annotated with `Iterator[T]` may be a generator or may return an iterator; its type does not say which.
# A closable return type that is not a generator means the latter: a file, a cursor, a stream.
@overload
def Inject(provider: "Callable[..., _AsyncGeneratorContextManager[T]]", /) -> T: ...
@overload
def Inject(provider: "Callable[..., _GeneratorContextManager[T]]", /) -> T: ...
@overload
def Inject(  # type: ignore[overload-overlap]  # a generator can be closed, too; the first match wins
    provider: Callable[..., AsyncGenerator[T, Any]],  # pyright: ignore[reportOverlappingOverload]
    /,
) -> T: ...
@overload
def Inject(  # type: ignore[overload-overlap]
    provider: Callable[..., Generator[T, Any, Any]], /
) -> T: ...
@overload
def Inject(  # type: ignore[overload-overlap]
    provider: Callable[..., Coroutine[Any, Any, T]], /
) -> T: ...
@overload
def Inject(provider: Callable[..., C], /) -> C: ...
@overload
def Inject(provider: Callable[..., AsyncIterator[T]], /) -> T: ...
@overload
def Inject(provider: Callable[..., Iterator[T]], /) -> T: ...
@overload
def Inject(provider: Callable[..., T], /) -> T: ...
def Inject(provider: Provider, /) -> Any:
    """Inject the value of a provider: use it as the default of a parameter of a handler or of another provider.

    `async def pay(order: int, db: Session = Inject(get_db))`: in each run, the worker calls `get_db` once, even if
    several parameters ask for it, and passes the value that it returns or yields. A provider may have injected
    parameters itself, including `Inject(current_job)`.

    A provider may be a function, a coroutine function, a generator, an async generator, or a generator decorated by
    contextlib. After the run, however it ended, the worker resumes the generators, the last opened first. An exception
    of the run is thrown into the generator, and it propagates even if the generator catches it. Plain functions and
    generators are called in a thread; one run uses one thread for all of them.

    Callers of the task do not see the parameter and cannot pass it. Make objects that live as long as the worker, such
    as a connection pool, in the lifespan: `Tenure(lifespan=...)`.

    Raises:
        UsageError: `provider` is not a valid provider.
    """
    return Injected(provider_of(provider, field="Inject"))


@dataclass(frozen=True)
class ProviderStep:
    """One provider of a run. `parameters`: for each injected parameter, the index of the step that makes its value."""

    name: str
    provider: Provider
    make: Callable[..., Any]
    kind: Kind
    parameters: Mapping[str, int]


@dataclass(frozen=True)
class Needs:
    """The injected values of a function: the steps that make them, in order, and the step index of each parameter."""

    steps: tuple[ProviderStep, ...] = ()
    parameters: Mapping[str, int] = field(default_factory=dict[str, int])


def needs(function: Callable[..., Any], replaced: Mapping[Provider, Provider] | None = None) -> Needs:
    """Return the injected values of a function, with some providers replaced by others.

    Raises:
        UsageError: a provider has a required parameter without `Inject`, or depends on itself.
    """
    survey = _ProviderWalk(replaced or {})
    parameters = survey.places(injections(inspect.signature(function).parameters.values(), owner=_name(function)))
    return Needs(tuple(survey.steps), parameters)


def injections(parameters: Iterable[Parameter], *, owner: str) -> dict[str, Provider]:
    """Return the providers that a signature asks for, by parameter name.

    Raises:
        UsageError: an injected parameter is positional-only, or stands before `*args`, so it cannot be passed by name.
    """
    found: dict[str, Provider] = {}
    by_place: str | None = None
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL and by_place is not None:
            raise UsageError(f"{owner}: {by_place!r} is injected and precedes *{parameter.name}; put it after that")
        if not isinstance(parameter.default, Injected):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(f"{owner}: {parameter.name!r} is injected and positional only; put it after a *")
        found[parameter.name] = parameter.default.provider
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            by_place = parameter.name
    return found


def refuse_injections(function: Callable[..., Any], *, owner: str) -> None:
    """Check that a function that gets no injected values does not ask for them.

    Raises:
        UsageError: a parameter has `Inject(...)` as its default.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    for name in injections(parameters, owner=owner):
        raise UsageError(f"{owner}: {name!r} has Inject(...), which works in tasks, their hooks and providers only")


def provider_of(value: object, *, field: str) -> Provider:
    """Return the provider.

    Raises:
        UsageError: it is not callable, is not hashable, or has a required parameter without `Inject`.
    """
    if not callable(value) or isinstance(value, Injected):
        raise UsageError(f"{field}({shown(value)}) is not a provider; give the function itself, without calling it")
    try:
        hash(value)
        signature = inspect.signature(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{field}({shown(value)}): {error}; wrap it in a function that takes nothing") from None
    for parameter in signature.parameters.values():
        if parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise UsageError(
                f"{field}: the provider {_name(value)} takes {parameter.name!r}, which has no value; write "
                f"{parameter.name} = Inject(...), or give it a default"
            )
    return value


class _ProviderWalk:
    """Walks a tree of providers from the leaves up and makes one step for each provider."""

    def __init__(self, replaced: Mapping[Provider, Provider]) -> None:
        self.steps: list[ProviderStep] = []
        self._replaced = replaced
        self._places: dict[Provider, int] = {}
        self._trail: list[Provider] = []

    def places(self, wanted: Mapping[str, Provider]) -> dict[str, int]:
        return {name: self._place(self._replaced.get(provider, provider)) for name, provider in wanted.items()}

    def _place(self, provider: Provider) -> int:
        if provider in self._trail:
            around = [*self._trail[self._trail.index(provider) :], provider]
            raise UsageError(
                f"providers depend on each other in a circle: {' → '.join(map(_name, around))}; break it up"
            )
        if provider not in self._places:
            self._trail.append(provider)
            parameters = inspect.signature(provider).parameters.values()
            injected = self.places(injections(parameters, owner=f"the provider {_name(provider)}"))
            self._trail.pop()
            self._places[provider] = len(self.steps)
            self.steps.append(_step(provider, injected))
        return self._places[provider]


def _step(provider: Provider, parameters: Mapping[str, int]) -> ProviderStep:
    make, kind = _way(provider)
    return ProviderStep(_name(provider), provider, make, kind, parameters)


def _way(provider: Provider) -> tuple[Callable[..., Any], Kind]:
    """Return how to call a provider, and its kind. Generators of both kinds become context managers."""
    body = unwrapped(provider)
    if inspect.isasyncgenfunction(body):
        return asynccontextmanager(provider), "async generator"
    if inspect.isgeneratorfunction(body):
        return contextmanager(provider), "generator"
    if is_async(provider):
        return provider, "coroutine function"
    # A function decorated by contextlib keeps the generator function in __wrapped__.
    within = getattr(body, "__wrapped__", None)
    if inspect.isasyncgenfunction(within):
        return provider, "async generator"
    return provider, "generator" if inspect.isgeneratorfunction(within) else "function"


def _name(provider: Callable[..., Any]) -> str:
    return getattr(provider, "__qualname__", None) or shown(provider)
