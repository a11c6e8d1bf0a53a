"""A router: the tasks of one part of a large app and what goes with them, written without the app, taken in by it."""

from collections.abc import Callable, Container, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from holdfast.collecting import (
    CollectDecorator,
    DeclareCollectDecorator,
    DeclaredCollectTask,
    ImplementCollectDecorator,
    collecting,
)
from holdfast.core.check import named, no_others, of_kind, several
from holdfast.core.duration import Duration
from holdfast.core.events import Event
from holdfast.core.schedule import Overlap, Schedule
from holdfast.errors import UsageError
from holdfast.functions import is_async, name_of, runnable
from holdfast.hearing import registering
from holdfast.middleware import Middleware, layer
from holdfast.migration import Versions, versions
from holdfast.options import Collect, TaskOptions, TaskSettings, Timing
from holdfast.options.merges import collected
from holdfast.options.schedules import MissedTicks, grace_of
from holdfast.schedules import ScheduleDecorator, only_options, schedule_of
from holdfast.task import (
    AsyncTask,
    DeclareDecorator,
    DeclaredTask,
    ImplementDecorator,
    PlainTask,
    Registry,
    Standing,
    Task,
    TaskDecorator,
    job_of,
)

P = ParamSpec("P")
R = TypeVar("R")
Item = TypeVar("Item")
E = TypeVar("E", bound=Event)
M = TypeVar("M", bound=Middleware)


class Home(Registry, Protocol):
    """What a router needs of its app."""

    def admit(self, arrivals: "Sequence[Arrival]", plans: "Sequence[Planned]" = ()) -> None:
        """Make these tasks and schedules the app's, all of them or none."""
        ...


@dataclass(frozen=True)
class Place:
    """Where tasks are defined: in an app, and under the prefix and with the options that its routers give them."""

    app: Home
    defaults: TaskOptions
    prefix: str = ""
    around: tuple[Sequence[Middleware], ...] = ()


@dataclass(frozen=True)
class Member:
    """A task as it was defined: with a name, or without, and its own options, over those of a declared one perhaps."""

    task: Task[..., Any]
    given: str | None
    settings: TaskOptions
    implements: DeclaredTask[..., Any] | None = None


@dataclass(frozen=True)
class Plan:
    """A schedule as it was declared: which call it makes, and when; with a name, or without."""

    task: Task[..., Any]
    given: str | None
    args: Sequence[object]
    kwargs: Mapping[str, object]
    when: Mapping[str, Any]


Arrival = tuple[Member, Place]
Planned = tuple[Plan, Place]


@dataclass(frozen=True)
class Definition:
    """What `task` and `declare` were told, before there is a function."""

    given: str | None
    settings: TaskOptions
    known: Versions
    prefix: str = ""
    collect: Collect | None = None

    def member(self, function: object, *, declared: bool = False) -> Member:
        """Return a function as a task, in no app so far.

        Raises:
            UsageError: it is no such function.
        """
        runs = _untaken(function)
        task = _kind(runs, self.collect, declared=declared)(
            runs, _name(self.given, runs, self.prefix), self.settings, self.known, self.collect
        )
        return Member(task, self.given, self.settings)


def definition(
    name: object, options: dict[str, Any], version: object, since: object, *, prefix: str = "", collect: object = None
) -> Definition:
    """Return what a task is told to be.

    Raises:
        UsageError: an option is unknown or has no valid value, or the name is none.
    """
    no_others(options, ("name", *TaskSettings.__annotations__, "version", "since"))
    settings = TaskOptions(**options)
    return Definition(
        None if name is None else named(name, field="name"),
        settings,
        versions(version, since),
        prefix,
        None if collect is None else collected(collect),
    )


def implementation(function: object, declared: DeclaredTask[..., Any], own: TaskOptions) -> Member:
    """Return a function as the task that another declares, with options of its own laid over those declared.

    Raises:
        UsageError: it is no such function, or does not take and return what is declared.
    """
    runs = _untaken(function)
    known = Versions(declared.migrations.version, declared.migrations.since)
    kind = _kind(runs, declared.collect)
    task = kind(runs, declared.name, own.over(declared.settings), known, declared.collect)
    if (wrong := task.signature.breach(declared.signature)) is not None:
        raise UsageError(f"{name_of(runs)} implements task {declared.name!r}, but {wrong}; let it be as declared")
    return Member(task, None, own, declared)


def contract(declared: object) -> None:
    """Make sure that this can be implemented.

    Raises:
        UsageError: it is no declared task.
    """
    of_kind(declared, DeclaredTask, field="declared", remedy="give what @app.declare or @router.declare made")


def standings(
    arrivals: Sequence[Arrival], *, tasks: Container[str], declared: Container[str]
) -> dict[Task[..., Any], Standing]:
    """Return what each of these will be in its place, beside the tasks that the app has and those it declares.

    Raises:
        UsageError: a name is taken, or none that a task can have; options do not fit a task's arguments; or what is
            implemented is not declared in this app, or implemented already.
    """
    made: dict[Task[..., Any], Standing] = {}
    names, running = set[str](), set[str]()
    for one, place in arrivals:
        if one.implements is not None:
            continue
        name = _name(one.given, one.task.function, place.prefix)
        if name in declared and not isinstance(one.task, DeclaredTask):
            raise UsageError(f"task {name!r} is declared already; define it by @app.implement(...) of what declares it")
        if name in tasks or name in declared or name in names:
            raise UsageError(f"task {name!r} is defined twice; give one of them another name=")
        names.add(name)
        made[one.task] = one.task.placed(place.app, name, one.settings.over(place.defaults), place.around)
    for one, place in arrivals:
        if one.implements is None:
            continue
        said = made.get(one.implements) or one.implements.standing
        if said.app is not place.app:
            raise UsageError(f"task {said.name!r} is declared in another app; implement it there")
        if said.name in tasks or said.name in running:
            raise UsageError(f"task {said.name!r} is implemented twice; leave one of them")
        running.add(said.name)
        made[one.task] = one.task.placed(place.app, said.name, one.settings.over(said.settings), place.around)
    return made


def timetable(
    plans: Sequence[Planned], standings: Mapping[Task[..., Any], Standing], *, known: Container[str]
) -> dict[str, Schedule]:
    """Return the schedules that these will be, beside those that the app has, and with the tasks that it will have.

    Raises:
        UsageError: a name is taken, or none that a schedule can have; or a task cannot be called so.
        PayloadTooLargeError: the arguments take more than 1 MiB.
    """
    made: dict[str, Schedule] = {}
    for plan, place in plans:
        if plan.task not in standings and not plan.task.stands_in(place.app):
            raise UsageError(f"{plan.task!r} is no task of this app; include its router first")
        said = standings.get(plan.task) or plan.task.standing
        job = job_of(said.app, plan.task.signature, said.template, said.fitting, tuple(plan.args), dict(plan.kwargs))
        grace = grace_of(said.app.timing) if plan.when["grace"] is None else plan.when["grace"]
        name = said.name if plan.given is None else place.prefix + plan.given
        schedule = schedule_of(name, job, **{**plan.when, "grace": grace})
        if schedule.name in known or schedule.name in made:
            raise UsageError(f"schedule {schedule.name!r} is defined twice; give one of them another name=")
        made[schedule.name] = schedule
    return made


class Router:
    """One part of an app, tasks and what goes with them, to be included in it: `app.include(router)`.

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
        self._plans: list[Plan] = []
        self._routers: list[Router] = []
        self._middleware: list[Middleware] = []
        self._waiting: list[Callable[[Place], None]] = []
        """What can be done once there is an app."""
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
        self,
        *,
        collect: Collect,
        name: str | None = None,
        version: int = 1,
        since: int = 1,
        **options: Unpack[TaskSettings],
    ) -> CollectDecorator: ...
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
        collect: Collect | None = None,
        **options: Any,
    ) -> Any:
        """Make a function a task, as `app.task` does. It can be enqueued from when an app includes this router.

        Raises:
            UsageError: an option is unknown or has no valid value, or it is no such function; if an app includes this
                router already, also: the name is taken.
        """
        told = definition(name, options, version, since, prefix=self.prefix, collect=collect)

        def make(function: object) -> Task[..., Any]:
            return self._taken(told.member(function))

        return make if function is None else make(function)

    @overload
    def declare(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> DeclaredTask[P, R]: ...
    @overload
    def declare(self, function: Callable[P, R], /) -> DeclaredTask[P, R]: ...
    @overload
    def declare(
        self,
        *,
        collect: Collect,
        name: str | None = None,
        version: int = 1,
        since: int = 1,
        **options: Unpack[TaskSettings],
    ) -> DeclareCollectDecorator: ...
    @overload
    def declare(
        self, *, name: str | None = None, version: int = 1, since: int = 1, **options: Unpack[TaskSettings]
    ) -> DeclareDecorator: ...
    def declare(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        version: int = 1,
        since: int = 1,
        collect: Collect | None = None,
        **options: Any,
    ) -> Any:
        """Declare a task whose handler is elsewhere, as `app.declare` does: what producers and workers share.

        Raises:
            UsageError: see `task`.
        """
        told = definition(name, options, version, since, prefix=self.prefix, collect=collect)

        def make(function: object) -> Task[..., Any]:
            return self._taken(told.member(function, declared=True))

        return make if function is None else make(function)

    @overload
    def implement(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]  # first match wins
        self, declared: DeclaredCollectTask[Item, R], *, middleware: Sequence[Middleware] | None = None
    ) -> ImplementCollectDecorator[Item, R]: ...
    @overload
    def implement(
        self, declared: DeclaredTask[P, R], *, middleware: Sequence[Middleware] | None = None
    ) -> ImplementDecorator[P, R]: ...
    def implement(self, declared: DeclaredTask[Any, Any], *, middleware: Sequence[Middleware] | None = None) -> Any:
        """Make a function the handler of a declared task, as `app.implement` does.

        Raises:
            UsageError: that is no declared task; from the decorator: it is no such function, or does not take and
                return what is declared; if an app includes this router already, also: see `app.implement`.
        """
        contract(declared)
        own = TaskOptions(middleware=middleware)

        def make(function: object) -> Any:
            return self._taken(implementation(function, declared, own))

        return make

    def cron(
        self,
        pattern: str,
        *,
        tz: str = "UTC",
        missed: MissedTicks = "latest",
        overlap: Overlap = "skip",
        grace: Duration | None = None,
        name: str | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[TaskSettings],
    ) -> ScheduleDecorator:
        """Enqueue a task by the clocks of a zone, as `app.cron` does. The prefix stands before `name`, too.

        Raises:
            UsageError: an option has no valid value, the arguments do not fit the function, or it is a task of another
                router; if an app includes this router already, also: the name is taken.
        """
        return self._scheduling(
            options, name, args, kwargs, cron=pattern, tz=tz, missed=missed, overlap=overlap, grace=grace
        )

    def every(
        self,
        interval: Duration,
        *,
        missed: MissedTicks = "latest",
        overlap: Overlap = "skip",
        grace: Duration | None = None,
        name: str | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[TaskSettings],
    ) -> ScheduleDecorator:
        """Enqueue a task at each whole number of intervals since 1970, as `app.every` does. All else is as with `cron`.

        Raises:
            UsageError: see `cron`.
        """
        return self._scheduling(
            options, name, args, kwargs, every=interval, missed=missed, overlap=overlap, grace=grace
        )

    def middleware(self, middleware: M) -> M:
        """Wrap a coroutine function around every run of this router's tasks, as `app.middleware` does for all.

        It stands within the app's and that of the routers around this one, and around what the task's options say. A
        worker that has run a task of it before does not have it around that.

        Raises:
            UsageError: it is no coroutine function of two arguments.
        """
        layer(middleware)
        self._middleware.append(middleware)
        return middleware

    def on(self, kind: type[E], *, scope: str = "once") -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register a handler for an event, as `app.on` does: for those of the whole app, once that includes this.

        Raises:
            UsageError: that is no event class, or no such scope; or what is registered cannot be called.
        """

        def take(handler: Callable[[E], object]) -> None:
            self._once_inside(lambda inside: inside.app.hear(kind, handler, scope=scope))

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
        """Become a part of an app; what `include` comes down to.

        Raises:
            UsageError: it is included somewhere already; or one of its tasks has a name that is taken, or options that
                do not fit it, or one of its schedules cannot be made. Then nothing of it is taken in.
        """
        self._make_sure_that_it_is_free()
        place.app.admit(list(self._arrivals(place)), list(self._planned(place)))
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

    def _taken(self, one: Member) -> Task[..., Any]:
        if self._inside is not None:
            self._inside.app.admit([(one, self._inside)])
        self._members.append(one)
        return one.task

    def _scheduling(
        self,
        options: TaskSettings,
        name: str | None,
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        **when: Any,
    ) -> ScheduleDecorator:
        only_options(options, ("name", "args", "kwargs", *when))
        given, settings = several(args, field="args"), TaskOptions(**options)
        said = None if name is None else named(name, field="name")

        def declare(function: Any) -> Any:
            if not isinstance(function, Task):
                task = self._taken(Definition(None, settings, Versions(), self.prefix).member(function))
            elif options:
                raise UsageError(f"{function!r} has its options already; give {next(iter(options))} to @router.task")
            else:
                task = cast("Task[..., Any]", function)
            if not any(one.task is task for one in self._members):
                raise UsageError(f"{task!r} is no task of {self!r}; let its own router schedule it")
            # What can be wrong with it is told here, as far as it can be without an app.
            grace = grace_of(Timing()) if when["grace"] is None else when["grace"]
            schedule_of(said or task.name, task.tailored({})[1], **{**when, "grace": grace})
            _fits(task, given, kwargs or {})
            plan = Plan(task, said, given, kwargs or {}, when)
            if self._inside is not None:
                self._inside.app.admit([], [(plan, self._inside)])
            self._plans.append(plan)
            return task

        return declare

    def _make_sure_that_it_is_free(self) -> None:
        if self._included:
            raise UsageError(
                f"{self!r} is included already, and its tasks can have one app and one name only; "
                "for another app, make it in a function that returns a new Router"
            )

    def _arrivals(self, place: Place) -> Iterator[Arrival]:
        inside = self._within(place)
        yield from ((one, inside) for one in self._members)
        for router in self._routers:
            yield from router._arrivals(inside)

    def _planned(self, place: Place) -> Iterator[Planned]:
        inside = self._within(place)
        yield from ((one, inside) for one in self._plans)
        for router in self._routers:
            yield from router._planned(inside)

    def _settle(self, place: Place) -> None:
        self._inside = self._within(place)
        for do in self._waiting:
            do(self._inside)
        self._waiting.clear()
        for router in self._routers:
            router._settle(self._inside)

    def _within(self, place: Place) -> Place:
        around = (*place.around, self._middleware)
        return Place(place.app, self.defaults.over(place.defaults), place.prefix + self.prefix, around)

    def _once_inside(self, do: Callable[[Place], None]) -> None:
        if self._inside is None:
            self._waiting.append(do)
        else:
            do(self._inside)


def routing(router: object) -> Router:
    """Return a router.

    Raises:
        UsageError: it is none.
    """
    return of_kind(router, Router, field="router", remedy='write router = Router(prefix="billing.")')


def _fits(task: Task[..., Any], args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    try:
        task.signature.arguments(tuple(args), dict(kwargs))
    except TypeError as error:
        raise UsageError(f"task {task.name!r}: {error}; its signature is {task.signature.as_called}") from None


def _untaken(function: object) -> Callable[..., Any]:
    if isinstance(function, Task):
        raise UsageError(f"{function!r} is a task already; give its .function, with another name=")
    return runnable(function)


def _kind(
    function: Callable[..., Any], collect: Collect | None = None, *, declared: bool = False
) -> type[Task[..., Any]]:
    if declared:
        return DeclaredTask[..., Any] if collect is None else cast("type[Task[..., Any]]", DeclaredCollectTask)
    if collect is not None:
        return collecting(function)
    return AsyncTask[..., Any] if is_async(function) else PlainTask[..., Any]


def _name(given: str | None, function: Callable[..., Any], prefix: str) -> str:
    if given is not None:
        return prefix + given
    own = name_of(function)
    return prefix + own.rpartition(".")[2] if prefix else own
