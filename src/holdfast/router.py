"""A router: the tasks and event handlers of one part of a large app, written without the app and taken in by it."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.core.check import named, no_others, of_kind
from holdfast.core.events import Event
from holdfast.errors import UsageError
from holdfast.functions import is_async, name_of, runnable
from holdfast.hearing import registering
from holdfast.migration import Versions, versions
from holdfast.options import TaskOptions, TaskSettings
from holdfast.task import AsyncTask, PlainTask, Registry, Standing, Task, TaskDecorator

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=Event)


class Home(Registry, Protocol):
    """What a router needs of its app."""

    def admit(self, arrivals: "Sequence[tuple[Task[..., Any], Standing]]") -> None:
        """Make these tasks of the app, all of them or none."""
        ...


@dataclass(frozen=True)
class Place:
    """Where tasks are defined: in an app, and under the prefix and with the options that its routers give them."""

    app: Home
    defaults: TaskOptions
    prefix: str = ""


@dataclass(frozen=True)
class Member:
    """A task as it was defined: with a name, or without, and with its own options."""

    task: Task[..., Any]
    given: str | None
    settings: TaskOptions

    def placed(self, place: Place) -> Standing:
        """Return what the task is in this place.

        Raises:
            UsageError: the name is none that a task can have, or the options do not fit its arguments.
        """
        name = _name(self.given, self.task.function, place.prefix)
        return self.task.placed(place.app, name, self.settings.over(place.defaults))


def member(function: object, given: str | None, settings: TaskOptions, known: Versions, *, prefix: str = "") -> Member:
    """Return a function as a task, in no app so far.

    Raises:
        UsageError: it is no such function.
    """
    if isinstance(function, Task):
        raise UsageError(f"{function!r} is a task already; give its .function, with another name=")
    runs = runnable(function)
    kind = AsyncTask[..., Any] if is_async(runs) else PlainTask[..., Any]
    return Member(kind(runs, _name(given, runs, prefix), settings, known), given, settings)


class Router:
    """Tasks and event handlers of one part of an app, to be included in it: `app.include(router)`.

    `prefix` stands before the name of each task; under one, a task that is given no name is called after its function
    alone. `defaults`: options for all its tasks. Routers may include routers: prefixes are joined, the outermost first,
    and the options of the inner one win over those of the outer one, and these over the app's.

    A router is included once, in one app: make it in a function where several apps of one process need it. What it gets
    once it is included, its app gets at once.

    Raises:
        UsageError: the prefix is no text, or the defaults are no options.
    """

    def __init__(self, *, prefix: str = "", defaults: TaskOptions | None = None) -> None:
        self.prefix = "" if prefix == "" else named(prefix, field="prefix")
        self.defaults = TaskOptions() if defaults is None else defaults
        of_kind(self.defaults, TaskOptions, field="defaults", remedy='write defaults=TaskOptions(queue="billing")')
        self._members: list[Member] = []
        self._routers: list[Router] = []
        self._unheard: list[Callable[[Registry], None]] = []
        self._included = False
        self._inside: Place | None = None
        """Where its tasks are, once there is an app."""

    def __repr__(self) -> str:
        return f"<router {self.prefix!r}>"

    @overload
    def task(  # type: ignore[overload-overlap]  # a coroutine function is a plain one, too; the first match wins
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(
        self, *, name: str | None = None, version: int = 1, since: int = 1, **options: Unpack[TaskSettings]
    ) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        version: int = 1,
        since: int = 1,
        **options: Any,
    ) -> Any:
        """Make a function a task, as `app.task` does. It can be enqueued from when an app includes this router.

        Raises:
            UsageError: an option is unknown or has no valid value, or it is no such function; if an app includes this
                router already, also: the name is taken.
        """
        no_others(options, ("name", *TaskSettings.__annotations__, "version", "since"))
        settings = TaskOptions(**options)
        given, known = None if name is None else named(name, field="name"), versions(version, since)

        def make(function: object) -> Task[..., Any]:
            made = member(function, given, settings, known, prefix=self.prefix)
            if self._inside is not None:
                self._inside.app.admit([(made.task, made.placed(self._inside))])
            self._members.append(made)
            return made.task

        return make if function is None else make(function)

    def on(self, kind: type[E], *, scope: str = "once") -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register a handler for an event, as `app.on` does: for those of the whole app, once that includes this.

        Raises:
            UsageError: that is no event class, or no such scope; or what is registered cannot be called.
        """

        def take(handler: Callable[[E], object]) -> None:
            if self._inside is None:
                self._unheard.append(lambda app: app.hear(kind, handler, scope=scope))
            else:
                self._inside.app.hear(kind, handler, scope=scope)

        return registering(kind, scope=scope, of=Event, take=take)

    def include(self, router: "Router") -> None:
        """Take in another router, with all that it has and gets later.

        Raises:
            UsageError: it is none, is included somewhere already, or includes this one; if an app includes this router
                already, also: one of its tasks has a name that is taken, or options that do not fit it.
        """
        if self in routing(router).family():
            raise UsageError(f"{router!r} includes {self!r}, or is the same; include the inner one in the outer one")
        if self._inside is not None:
            router.join(self._inside)
        else:
            router.claim()
        self._routers.append(router)

    def join(self, place: Place) -> None:
        """Become a part of an app; what `include` comes down to. If it raises, nothing of it has.

        Raises:
            UsageError: it is included somewhere already; or one of its tasks has a name that is taken, or options that
                do not fit it.
        """
        self._make_sure_that_it_is_free()
        place.app.admit(list(self._arrivals(place)))
        self.claim()
        self._settle(place)

    def claim(self) -> None:
        """Note that somebody includes it.

        Raises:
            UsageError: somebody did before.
        """
        self._make_sure_that_it_is_free()
        self._included = True

    def family(self) -> "Iterator[Router]":
        """Yield this router and all that it includes."""
        yield self
        for router in self._routers:
            yield from router.family()

    def _make_sure_that_it_is_free(self) -> None:
        if self._included:
            raise UsageError(
                f"{self!r} is included already, and its tasks can have one app and one name only; "
                "for another app, make it in a function that returns a new Router"
            )

    def _arrivals(self, place: Place) -> Iterator[tuple[Task[..., Any], Standing]]:
        inside = self._within(place)
        for one in self._members:
            yield one.task, one.placed(inside)
        for router in self._routers:
            yield from router._arrivals(inside)

    def _settle(self, place: Place) -> None:
        self._inside = self._within(place)
        for hear in self._unheard:
            hear(place.app)
        self._unheard.clear()
        for router in self._routers:
            router._settle(self._inside)

    def _within(self, place: Place) -> Place:
        return Place(place.app, self.defaults.over(place.defaults), place.prefix + self.prefix)


def routing(router: object) -> Router:
    """Return a router.

    Raises:
        UsageError: it is none.
    """
    return of_kind(router, Router, field="router", remedy='write router = Router(prefix="billing.")')


def _name(given: str | None, function: Callable[..., Any], prefix: str) -> str:
    if given is not None:
        return prefix + given
    own = name_of(function)
    return prefix + own.rpartition(".")[2] if prefix else own
