"""Routers: each groups the tasks, schedules, handlers and middleware of one part of an app, which includes it later."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tenure.client.decorators import Decorators, ScheduleDefinition, TaskDefinition, name_under
from tenure.client.schedules import schedule_of
from tenure.client.task import DeclaredTask, Task, TaskBinding, TaskOwner, job_of
from tenure.core.check import named, of_kind
from tenure.core.events import Event
from tenure.core.schedule import Schedule
from tenure.errors import UsageError
from tenure.events.registration import registering
from tenure.handlers.middleware import Middleware, layer
from tenure.options import TaskOptions, Timing
from tenure.options.schedules import grace_of

E = TypeVar("E", bound=Event)
M = TypeVar("M", bound=Middleware)


class RouterParent(TaskOwner, Protocol):
    """The part of an app that a router uses."""

    def admit(self, arrivals: "Sequence[Arrival]", plans: "Sequence[Planned]" = ()) -> None:
        """Add these tasks and schedules to the app, all of them or none."""
        ...


@dataclass(frozen=True)
class DefinitionScope:
    """The place where tasks are defined: an app, and the prefix, options and middleware of the routers around them."""

    app: RouterParent
    defaults: TaskOptions
    prefix: str = ""
    around: tuple[Sequence[Middleware], ...] = ()


Arrival = tuple[TaskDefinition, DefinitionScope]
Planned = tuple[ScheduleDefinition, DefinitionScope]


def standings(
    arrivals: Sequence[Arrival], *, tasks: Container[str], declared: Container[str]
) -> dict[Task[..., Any], TaskBinding]:
    """Return the binding that each new task will have, given the names of the app's tasks and declared tasks.

    Raises:
        UsageError: a name is taken or invalid, options do not fit a task's arguments, or an implemented task is not
            declared in this app or has an implementation already.
    """
    made: dict[Task[..., Any], TaskBinding] = {}
    names, running = set[str](), set[str]()
    for one, place in arrivals:
        if one.implements is not None:
            continue
        name = name_under(one.given, one.task.function, place.prefix)
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
    plans: Sequence[Planned], standings: Mapping[Task[..., Any], TaskBinding], *, known: Container[str]
) -> dict[str, Schedule]:
    """Return the new schedules by name, given the bindings of the new tasks and the names of the app's schedules.

    Raises:
        UsageError: a name is taken or invalid, a task is not of this app, or the arguments do not fit a task.
        PayloadTooLargeError: the encoded arguments take more than 1 MiB.
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


class Router(Decorators):
    """One part of an app: tasks with their schedules, event handlers and middleware; `app.include(router)` adds it.

    `prefix` comes before the name of each task. Under a prefix, a task without a name is named after its function
    alone, without the module. `defaults`: options for all tasks of the router. Routers may include routers: their
    prefixes are joined, the outermost first. Options of an inner router override those of an outer one, and these
    override the app's.

    A router is included once, in one app. If several apps in one process need it, make it in a function. Tasks that
    are added to a router after it is included go to the app at once.

    Raises:
        UsageError: the prefix is not a valid name, or the defaults are not `TaskOptions`.
    """

    def __init__(self, *, prefix: str = "", defaults: TaskOptions | None = None) -> None:
        self.prefix = "" if prefix == "" else named(prefix, field="prefix")
        self.defaults = TaskOptions() if defaults is None else defaults
        of_kind(self.defaults, TaskOptions, field="defaults", remedy='write defaults=TaskOptions(queue="billing")')
        self._members: list[TaskDefinition] = []
        self._plans: list[ScheduleDefinition] = []
        self._routers: list[Router] = []
        self._middleware: list[Middleware] = []
        self._waiting: list[Callable[[DefinitionScope], None]] = []
        """Actions that wait until an app includes this router."""
        self._included = False
        self._inside: DefinitionScope | None = None
        """The scope of the router's tasks; None until an app includes the router."""

    def __repr__(self) -> str:
        return f"<router {self.prefix!r}>"

    def middleware(self, middleware: M) -> M:
        """Wrap a coroutine function around every run of this router's tasks, as `app.middleware` does for all tasks.

        The app's middleware is outermost, then that of the outer routers, then this, then that of the task's options.
        A worker does not apply it to a task that it has run before this call.

        Raises:
            UsageError: `middleware` is not a coroutine function of two arguments.
        """
        layer(middleware)
        self._middleware.append(middleware)
        return middleware

    def on(self, kind: type[E], *, scope: str = "once") -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register a handler for an event, as `app.on` does.

        It gets the events of the whole app, not only of this router's tasks, once an app includes the router.

        Raises:
            UsageError: `kind` is not an event class, the scope is unknown, or the handler is not callable.
        """

        def take(handler: Callable[[E], object]) -> None:
            self._once_inside(lambda inside: inside.app.hear(kind, handler, scope=scope))

        return registering(kind, scope=scope, of=Event, take=take)

    def include(self, router: "Router") -> None:
        """Include another router, with all that it has now and all that is added to it later.

        Raises:
            UsageError: `router` is not a Router, is included elsewhere already, or includes this router. If an app
                includes this router already, also: a task's name is taken, a task's options do not fit it, or a
                schedule is invalid.
        """
        if self in routing(router).family():
            raise UsageError(f"{router!r} includes {self!r}, or is the same; include the inner one in the outer one")
        if self._inside is not None:
            router.join(self._inside)
        else:
            router.claim()
        self._routers.append(router)

    def join(self, place: DefinitionScope) -> None:
        """Add this router to an app; `include` calls it.

        Raises:
            UsageError: the router is included elsewhere already, a task's name is taken, a task's options do not fit
                it, or a schedule is invalid. Then nothing is added.
        """
        self._make_sure_that_it_is_free()
        place.app.admit(list(self._arrivals(place)), list(self._planned(place)))
        self.claim()
        self._settle(place)

    def claim(self) -> None:
        """Mark this router as included.

        Raises:
            UsageError: it is included already.
        """
        self._make_sure_that_it_is_free()
        self._included = True

    def family(self) -> "Iterator[Router]":
        """Yield this router and all routers that it includes, at any depth."""
        yield self
        for router in self._routers:
            yield from router.family()

    @property
    def _named_under(self) -> str:
        return self.prefix

    def _taken(self, one: TaskDefinition | None, plan: ScheduleDefinition | None = None) -> None:
        if plan is not None:
            self._see_that_it_can_be(plan, one)
        if self._inside is not None:
            inside = self._inside
            inside.app.admit([] if one is None else [(one, inside)], [] if plan is None else [(plan, inside)])
        if one is not None:
            self._members.append(one)
        if plan is not None:
            self._plans.append(plan)

    def _see_that_it_can_be(self, plan: ScheduleDefinition, new: TaskDefinition | None) -> None:
        """Check a schedule as far as that is possible without an app, so that errors point at its definition."""
        task = plan.task
        if new is None and not any(one.task is task for one in self._members):
            raise UsageError(f"{task!r} is no task of {self!r}; let its own router schedule it")
        grace = grace_of(Timing()) if plan.when["grace"] is None else plan.when["grace"]
        schedule_of(plan.given or task.name, task.tailored({})[1], **{**plan.when, "grace": grace})
        try:
            task.signature.arguments(tuple(plan.args), dict(plan.kwargs))
        except TypeError as error:
            raise UsageError(f"task {task.name!r}: {error}; its signature is {task.signature.as_called}") from None

    def _make_sure_that_it_is_free(self) -> None:
        if self._included:
            raise UsageError(
                f"{self!r} is included already, and its tasks can have one app and one name only; "
                "for another app, make it in a function that returns a new Router"
            )

    def _arrivals(self, place: DefinitionScope) -> Iterator[Arrival]:
        inside = self._within(place)
        yield from ((one, inside) for one in self._members)
        for router in self._routers:
            yield from router._arrivals(inside)

    def _planned(self, place: DefinitionScope) -> Iterator[Planned]:
        inside = self._within(place)
        yield from ((one, inside) for one in self._plans)
        for router in self._routers:
            yield from router._planned(inside)

    def _settle(self, place: DefinitionScope) -> None:
        self._inside = self._within(place)
        for do in self._waiting:
            do(self._inside)
        self._waiting.clear()
        for router in self._routers:
            router._settle(self._inside)

    def _within(self, place: DefinitionScope) -> DefinitionScope:
        around = (*place.around, self._middleware)
        return DefinitionScope(place.app, self.defaults.over(place.defaults), place.prefix + self.prefix, around)

    def _once_inside(self, do: Callable[[DefinitionScope], None]) -> None:
        if self._inside is None:
            self._waiting.append(do)
        else:
            do(self._inside)


def routing(router: object) -> Router:
    """Return the router.

    Raises:
        UsageError: the value is not a Router.
    """
    return of_kind(router, Router, field="router", remedy='write router = Router(prefix="billing.")')
