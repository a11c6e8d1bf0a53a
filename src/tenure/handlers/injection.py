"""What a function is given beside its arguments: told by a default value, made by a provider once a run.

    async def handler(user: int, db: Session = Inject(get_db))
                                                 └─ get_db(pool: Pool = Inject(get_pool))
                                                                            └─ get_pool(job = Inject(current_job))

`needs` turns such a tree into steps, each after those it rests on; the worker goes through them and back again.
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
from tenure.handlers.functions import body_of, is_async

if TYPE_CHECKING:
    from contextlib import (
        _AsyncGeneratorContextManager,  # pyright: ignore[reportPrivateUsage]
        _GeneratorContextManager,  # pyright: ignore[reportPrivateUsage]
    )

T = TypeVar("T")


class SupportsClose(Protocol):
    """What can be closed."""

    def close(self) -> object:
        """Close it."""
        ...


class SupportsAclose(Protocol):
    """What can be closed on a loop."""

    def aclose(self) -> object:
        """Close it."""
        ...


C = TypeVar("C", bound=SupportsClose | SupportsAclose)

Provider = Callable[..., Any]

Kind = Literal["function", "coroutine function", "generator", "async generator"]
"""How a provider is called; what contextlib has made of a generator is called as one."""


class Injected:
    """What `Inject` leaves in a signature, for the worker to put a provider's value in its place."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def __repr__(self) -> str:
        return f"Inject({_name(self.provider)})"


# A function that is annotated with `Iterator[T]` may be a generator or return what iterates, which looks the same from
# outside. What can be closed and is no generator is taken for the latter: a file, a cursor, a stream.
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
    """Stand for what a provider makes, as the default of a handler's or another provider's parameter.

    `async def pay(order: int, db: Session = Inject(get_db))`: in each run the worker calls `get_db`, once, however many
    ask for it, and hands over what it returns or yields. A generator, an async generator, or what contextlib makes of
    one goes on when the run is over, however it ended, the last opened first; an exception of the run is thrown into
    it, and goes on whatever becomes of it there. Plain functions and generators are called in a thread, all of one run
    in the same; a provider may ask for others in the same way, and for `Inject(current_job)`.

    Callers of the task do not see the parameter, and cannot fill it. What shall live as long as the worker, such as a
    pool, is the lifespan's: `Tenure(lifespan=...)`.

    Raises:
        UsageError: that is no provider.
    """
    return Injected(provider_of(provider, field="Inject"))


@dataclass(frozen=True)
class ProviderStep:
    """One provider of a run, and which of the values made before it takes, by their places."""

    name: str
    provider: Provider
    make: Callable[..., Any]
    kind: Kind
    takes: Mapping[str, int]


@dataclass(frozen=True)
class Needs:
    """All that a function is to be given: how it is made, in order, and which of its parameters takes which step's."""

    steps: tuple[ProviderStep, ...] = ()
    takes: Mapping[str, int] = field(default_factory=dict[str, int])


def needs(function: Callable[..., Any], replaced: Mapping[Provider, Provider] | None = None) -> Needs:
    """Return what a function is to be given, with some providers replaced by others.

    Raises:
        UsageError: a provider takes what nobody can give it, or rests on itself.
    """
    survey = _ProviderWalk(replaced or {})
    takes = survey.places(injections(inspect.signature(function).parameters.values(), whose=_name(function)))
    return Needs(tuple(survey.steps), takes)


def injections(parameters: Iterable[Parameter], *, whose: str) -> dict[str, Provider]:
    """Return the providers that a signature asks for, by parameter.

    Raises:
        UsageError: one of them stands where it could not be filled without its neighbours.
    """
    found: dict[str, Provider] = {}
    by_place: str | None = None
    for one in parameters:
        if one.kind is one.VAR_POSITIONAL and by_place is not None:
            raise UsageError(f"{whose}: {by_place!r} is injected and stands before *{one.name}; put it behind")
        if not isinstance(one.default, Injected):
            continue
        if one.kind is one.POSITIONAL_ONLY:
            raise UsageError(f"{whose}: {one.name!r} is injected and positional only; put it behind a *")
        found[one.name] = one.default.provider
        if one.kind is one.POSITIONAL_OR_KEYWORD:
            by_place = one.name
    return found


def not_injected(function: Callable[..., Any], *, whose: str) -> None:
    """Make sure that a function that is given nothing does not ask for it.

    Raises:
        UsageError: it does.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    for name in injections(parameters, whose=whose):
        raise UsageError(f"{whose}: {name!r} has Inject(...), which works in tasks, their hooks and providers only")


def provider_of(given: object, *, field: str) -> Provider:
    """Return what can make a value.

    Raises:
        UsageError: it cannot be called, or not be told from others, or it takes what nobody can give it.
    """
    if not callable(given) or isinstance(given, Injected):
        raise UsageError(f"{field}({shown(given)}) is no provider; give the function itself, without calling it")
    try:
        hash(given)
        signature = inspect.signature(given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{field}({shown(given)}): {error}; wrap it in a function that takes nothing") from None
    for one in signature.parameters.values():
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise UsageError(
                f"{field}: the provider {_name(given)} takes {one.name!r}, which nobody gives it; write "
                f"{one.name} = Inject(...), or give it a default"
            )
    return given


class _ProviderWalk:
    """Goes through a tree of providers from the leaves up, each of them once."""

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
            raise UsageError(f"providers rest on each other in a circle: {' → '.join(map(_name, around))}; break it up")
        if provider not in self._places:
            self._trail.append(provider)
            parameters = inspect.signature(provider).parameters.values()
            takes = self.places(injections(parameters, whose=f"the provider {_name(provider)}"))
            self._trail.pop()
            self._places[provider] = len(self.steps)
            self.steps.append(_step(provider, takes))
        return self._places[provider]


def _step(provider: Provider, takes: Mapping[str, int]) -> ProviderStep:
    make, kind = _way(provider)
    return ProviderStep(_name(provider), provider, make, kind, takes)


def _way(provider: Provider) -> tuple[Callable[..., Any], Kind]:
    """Return how a provider is called, and what comes of that; both sorts of generators are context managers then."""
    body = body_of(provider)
    if inspect.isasyncgenfunction(body):
        return asynccontextmanager(provider), "async generator"
    if inspect.isgeneratorfunction(body):
        return contextmanager(provider), "generator"
    if is_async(provider):
        return provider, "coroutine function"
    # What contextlib makes of a generator function keeps that here.
    within = getattr(body, "__wrapped__", None)
    if inspect.isasyncgenfunction(within):
        return provider, "async generator"
    return provider, "generator" if inspect.isgeneratorfunction(within) else "function"


def _name(provider: Callable[..., Any]) -> str:
    return getattr(provider, "__qualname__", None) or shown(provider)
