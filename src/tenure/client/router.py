"""A router: the tasks of one part of a large app and what goes with them, written without the app, taken in by it."""

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
    """What a router needs of its app."""

    def admit(self, arrivals: "Sequence[Arrival]", plans: "Sequence[Planned]" = ()) -> None:
        """Make these tasks and schedules the app's, all of them or none."""
        ...


@dataclass(frozen=True)
class DefinitionScope:
    """Where tasks are defined: in an app, and under the prefix and with the options that its routers give them."""

    app: RouterParent
    defaults: TaskOptions
    prefix: str = ""
    around: tuple[Sequence[Middleware], ...] = ()


Arrival = tuple[TaskDefinition, DefinitionScope]
Planned = tuple[ScheduleDefinition, DefinitionScope]


def standings(
    arrivals: Sequence[Arrival], *, tasks: Container[str], declared: Container[str]
) -> dict[Task[..., Any], TaskBinding]:
    """Return what each of these will be in its place, beside the tasks that the app has and those it declares.

    Raises:
        UsageError: a name is taken, or none that a task can have; options do not fit a task's arguments; or what is
            implemented is not declared in this app, or implemented already.
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


class Router(Decorators):
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
        self._members: list[TaskDefinition] = []
        self._plans: list[ScheduleDefinition] = []
        self._routers: list[Router] = []
        self._middleware: list[Middleware] = []
        self._waiting: list[Callable[[DefinitionScope], None]] = []
        """What can be done once there is an app."""
        self._included = False
        self._inside: DefinitionScope | None = None
        """Where its tasks are, once there is an app."""

    def __repr__(self) -> str:
        return f"<router {self.prefix!r}>"

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

    def join(self, place: DefinitionScope) -> None:
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
        """Tell of what is wrong with a schedule, as far as that can be told without an app."""
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
    """Return a router.

    Raises:
        UsageError: it is none.
    """
    return of_kind(router, Router, field="router", remedy='write router = Router(prefix="billing.")')
