"""Routers: each groups the tasks, schedules, handlers and middleware of one part of an app, which includes it later."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tenure.client.decorators import Decorators, ScheduleDefinition, TaskDefinition, full_name
from tenure.client.schedules import schedule_of
from tenure.client.task import AppServices, DeclaredTask, Task, TaskBinding
from tenure.core.check import named, of_kind
from tenure.core.events import Event
from tenure.core.schedule import Schedule
from tenure.errors import UsageError
from tenure.events.registration import register
from tenure.handlers.middleware import Middleware, valid_middleware
from tenure.options import CallOptions, TaskOptions, Timing
from tenure.options.schedules import grace_of

E = TypeVar("E", bound=Event)
M = TypeVar("M", bound=Middleware)


@dataclass(frozen=True)
class DefinitionScope:
    """The place where tasks are defined: an app, and the prefix, options and middleware of the routers around them.

    `admit` adds tasks and schedules to the app, all of them or none.
    """

    app: AppServices
    admit: Callable[[Sequence["ScopedTask"], Sequence["ScopedSchedule"]], None]
    defaults: TaskOptions
    prefix: str = ""
    around: tuple[Sequence[Middleware], ...] = ()


ScopedTask = tuple[TaskDefinition, DefinitionScope]
ScopedSchedule = tuple[ScheduleDefinition, DefinitionScope]


def bindings(
    arrivals: Sequence[ScopedTask], *, tasks: Container[str], declared: Container[str]
) -> dict[Task[..., Any], TaskBinding]:
    """Return the binding that each new task will have, given the names of the app's tasks and declared tasks.

    Raises:
        UsageError: a name is taken or invalid, options do not fit a task's arguments, or an implemented task is not
            declared in this app or has an implementation already.
    """
    bindings: dict[Task[..., Any], TaskBinding] = {}
    names, running = set[str](), set[str]()
    for definition, scope in arrivals:
        if definition.implements is not None:
            continue
        name = full_name(definition.given_name, definition.task.function, scope.prefix)
        if name in declared and not isinstance(definition.task, DeclaredTask):
            raise UsageError(f"task {name!r} is declared already; define it by @app.implement(declared_task)")
        if name in tasks or name in declared or name in names:
            raise UsageError(f"task {name!r} is defined twice; give one of them another name=")
        names.add(name)
        bindings[definition.task] = definition.task.binding_in(
            scope.app, name, definition.settings.over(scope.defaults), scope.around
        )
    for definition, scope in arrivals:
        if definition.implements is None:
            continue
        declared_binding = bindings.get(definition.implements) or definition.implements.binding
        if declared_binding.app is not scope.app:
            raise UsageError(f"task {declared_binding.name!r} is declared in another app; implement it there")
        if declared_binding.name in tasks or declared_binding.name in running:
            raise UsageError(f"task {declared_binding.name!r} is implemented twice; leave one of them")
        running.add(declared_binding.name)
        bindings[definition.task] = definition.task.binding_in(
            scope.app, declared_binding.name, definition.settings.over(declared_binding.settings), scope.around
        )
    return bindings


def schedules_of(
    plans: Sequence[ScopedSchedule], bindings: Mapping[Task[..., Any], TaskBinding], *, known: Container[str]
) -> dict[str, Schedule]:
    """Return the new schedules by name, given the bindings of the new tasks and the names of the app's schedules.

    Raises:
        UsageError: a name is taken or invalid, a task is not of this app, or the arguments do not fit a task.
        PayloadTooLargeError: the encoded arguments take more than 1 MiB.
    """
    schedules: dict[str, Schedule] = {}
    for plan, scope in plans:
        if plan.task not in bindings and not plan.task.belongs_to(scope.app):
            raise UsageError(f"{plan.task!r} is not a task of this app; include its router first")
        binding = bindings.get(plan.task) or plan.task.binding
        job = binding.template.call(tuple(plan.args), dict(plan.kwargs)).job
        grace = grace_of(binding.app.timing) if plan.when["grace"] is None else plan.when["grace"]
        name = binding.name if plan.given_name is None else scope.prefix + plan.given_name
        schedule = schedule_of(name, job, **{**plan.when, "grace": grace})
        if schedule.name in known or schedule.name in schedules:
            raise UsageError(f"schedule {schedule.name!r} is defined twice; give one of them another name=")
        schedules[schedule.name] = schedule
    return schedules


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

    _internal = frozenset({"join", "mark_included", "with_included"})

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
        self._scope: DefinitionScope | None = None
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
        valid_middleware(middleware)
        self._middleware.append(middleware)
        return middleware

    def on(self, kind: type[E], *, scope: str = "once") -> Callable[[Callable[[E], object]], Callable[[E], object]]:
        """Register a handler for an event, as `app.on` does.

        It gets the events of the whole app, not only of this router's tasks, once an app includes the router.

        Raises:
            UsageError: `kind` is not an event class, the scope is unknown, or the handler is not callable.
        """

        def take(handler: Callable[[E], object]) -> None:
            self._once_included(lambda inside: inside.app.event_handlers.add(kind, handler, scope=scope))

        return register(kind, scope=scope, of=Event, add=take)

    def include(self, router: "Router") -> None:
        """Include another router, with all that it has now and all that is added to it later.

        Raises:
            UsageError: `router` is not a Router, is included elsewhere already, or includes this router. If an app
                includes this router already, also: a task's name is taken, a task's options do not fit it, or a
                schedule is invalid.
        """
        if self in valid_router(router).with_included():
            raise UsageError(f"{router!r} includes {self!r}, or is the same; include the inner one in the outer one")
        if self._scope is not None:
            router.join(self._scope)
        else:
            router.mark_included()
        self._routers.append(router)

    def join(self, scope: DefinitionScope) -> None:
        """Add this router to an app; `include` calls it.

        Raises:
            UsageError: the router is included elsewhere already, a task's name is taken, a task's options do not fit
                it, or a schedule is invalid. Then nothing is added.
        """
        self._check_not_included()
        scope.admit(list(self._definitions(scope)), list(self._schedule_definitions(scope)))
        self.mark_included()
        self._bind(scope)

    def mark_included(self) -> None:
        """Mark this router as included.

        Raises:
            UsageError: it is included already.
        """
        self._check_not_included()
        self._included = True

    def with_included(self) -> "Iterator[Router]":
        """Yield this router and all routers that it includes, at any depth."""
        yield self
        for router in self._routers:
            yield from router.with_included()

    @property
    def _name_prefix(self) -> str:
        return self.prefix

    @property
    def _serves_others(self) -> bool:
        return self._scope is not None and self._scope.app.serves_others

    def _add(self, new: TaskDefinition | None, plan: ScheduleDefinition | None = None) -> None:
        if plan is not None:
            self._check_schedule(plan, new)
        if self._scope is not None:
            scope = self._scope
            scope.admit([] if new is None else [(new, scope)], [] if plan is None else [(plan, scope)])
        if new is not None:
            self._members.append(new)
        if plan is not None:
            self._plans.append(plan)

    def _check_schedule(self, plan: ScheduleDefinition, new: TaskDefinition | None) -> None:
        """Check a schedule as far as that is possible without an app, so that errors point at its definition."""
        task = plan.task
        if new is None and not any(member.task is task for member in self._members):
            raise UsageError(f"{task!r} is not a task of {self!r}; schedule it on its own router")
        grace = grace_of(Timing()) if plan.when["grace"] is None else plan.when["grace"]
        schedule_of(plan.given_name or task.name, task.template(CallOptions()).common, **{**plan.when, "grace": grace})
        try:
            task.signature.arguments(tuple(plan.args), dict(plan.kwargs))
        except TypeError as error:
            raise UsageError(f"task {task.name!r}: {error}; its signature is {task.signature.for_callers}") from None

    def _check_not_included(self) -> None:
        if self._included:
            raise UsageError(
                f"{self!r} is included already, and its tasks can have one app and one name only; "
                "for another app, make it in a function that returns a new Router"
            )

    def _definitions(self, scope: DefinitionScope) -> Iterator[ScopedTask]:
        inner = self._inner_scope(scope)
        yield from ((member, inner) for member in self._members)
        for router in self._routers:
            yield from router._definitions(inner)

    def _schedule_definitions(self, scope: DefinitionScope) -> Iterator[ScopedSchedule]:
        inner = self._inner_scope(scope)
        yield from ((plan, inner) for plan in self._plans)
        for router in self._routers:
            yield from router._schedule_definitions(inner)

    def _bind(self, scope: DefinitionScope) -> None:
        self._scope = self._inner_scope(scope)
        for action in self._waiting:
            action(self._scope)
        self._waiting.clear()
        for router in self._routers:
            router._bind(self._scope)

    def _inner_scope(self, scope: DefinitionScope) -> DefinitionScope:
        around = (*scope.around, self._middleware)
        return DefinitionScope(
            scope.app, scope.admit, self.defaults.over(scope.defaults), scope.prefix + self.prefix, around
        )

    def _once_included(self, action: Callable[[DefinitionScope], None]) -> None:
        if self._scope is None:
            self._waiting.append(action)
        else:
            action(self._scope)


def valid_router(router: object) -> Router:
    """Return the router.

    Raises:
        UsageError: the value is not a Router.
    """
    return of_kind(router, Router, field="router", remedy='write router = Router(prefix="billing.")')
