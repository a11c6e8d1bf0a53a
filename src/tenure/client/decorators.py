"""The decorators that define tasks and schedules, in an app or in a router."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

from tenure.client.app_location import refuse_unreachable
from tenure.client.collecting import (
    CollectDecorator,
    DeclareCollectDecorator,
    DeclaredCollectTask,
    ImplementCollectDecorator,
    collecting_class,
)
from tenure.client.migration import PayloadVersions, versions
from tenure.client.schedules import ScheduleDecorator, only_options
from tenure.client.task import (
    AsyncTask,
    DeclareDecorator,
    DeclaredTask,
    ImplementDecorator,
    PlainTask,
    Task,
    TaskDecorator,
)
from tenure.core.check import named, no_others, of_kind, several
from tenure.core.duration import Duration
from tenure.core.internal import own_name
from tenure.core.public import PublicObject
from tenure.core.schedule import Overlap
from tenure.errors import UsageError
from tenure.handlers.functions import is_async, name_of, runnable
from tenure.handlers.middleware import Middleware
from tenure.options import Collect, TaskOptions, TaskSettings
from tenure.options.documented import lists_options
from tenure.options.merges import valid_collect
from tenure.options.schedules import MissedTicks

P = ParamSpec("P")
R = TypeVar("R")
Item = TypeVar("Item")


@dataclass(frozen=True)
class TaskDefinition:
    """A task as it was defined: its given name, if any, its own options, and the declared task that it implements."""

    task: Task[..., Any]
    given_name: str | None
    settings: TaskOptions
    implements: DeclaredTask[..., Any] | None = None


@dataclass(frozen=True)
class ScheduleDefinition:
    """A schedule as it was declared: which call it makes and when, and its given name, if any."""

    task: Task[..., Any]
    given_name: str | None
    args: Sequence[object]
    kwargs: Mapping[str, object]
    when: Mapping[str, Any]


@dataclass(frozen=True)
class TaskDeclaration:
    """The arguments of `task` or `declare`, checked, before the decorator gets its function."""

    given_name: str | None
    settings: TaskOptions
    known: PayloadVersions
    prefix: str = ""
    collect: Collect | None = None

    def define(self, function: object, *, declared: bool = False) -> TaskDefinition:
        """Return a function as a task that is not bound to an app yet.

        Raises:
            UsageError: `function` cannot be a task: it is not callable, is a class or a task, or yields.
        """
        runs = _plain_function(function)
        task = _kind(runs, self.collect, declared=declared)(
            runs, full_name(self.given_name, runs, self.prefix), self.settings, self.known, self.collect
        )
        return TaskDefinition(task, self.given_name, self.settings)


def definition(
    name: object, options: dict[str, Any], version: object, since: object, *, prefix: str = "", collect: object = None
) -> TaskDeclaration:
    """Check the arguments of `task` or `declare` and return them as a declaration.

    Raises:
        UsageError: an option is unknown or invalid, or the name is invalid.
    """
    no_others(options, ("name", *TaskSettings.__annotations__, "version", "since"))
    settings = TaskOptions(**options)
    return TaskDeclaration(
        None if name is None else own_name(name, field="name"),
        settings,
        versions(version, since),
        prefix,
        None if collect is None else valid_collect(collect),
    )


def implementation(function: object, declared: DeclaredTask[..., Any], own: TaskOptions) -> TaskDefinition:
    """Return a function as the implementation of a declared task, with its own options merged over the declared ones.

    Raises:
        UsageError: `function` cannot be a task, or its signature does not match the declared one.
    """
    runs = _plain_function(function)
    known = PayloadVersions(declared.migrations.version, declared.migrations.since)
    kind = _kind(runs, declared.collect)
    task = kind(runs, declared.name, own.over(declared.settings), known, declared.collect)
    if (wrong := task.signature.mismatch(declared.signature)) is not None:
        raise UsageError(
            f"{name_of(runs)} implements task {declared.name!r}, but {wrong}; change it to match the declaration"
        )
    return TaskDefinition(task, None, own, declared)


def check_declared(declared: object) -> None:
    """Check that the value is a declared task, which can be implemented.

    Raises:
        UsageError: it is not a declared task.
    """
    of_kind(declared, DeclaredTask, field="declared", remedy="give the result of @app.declare or @router.declare")


class Decorators(PublicObject, ABC):
    """The decorators that apps and routers share."""

    @property
    def _name_prefix(self) -> str:
        """The prefix of the names of its tasks."""
        return ""

    @property
    def _serves_others(self) -> bool:
        """True if workers in other processes may run its tasks, as far as that is known already."""
        return False

    @abstractmethod
    def _add(self, new: TaskDefinition | None, plan: ScheduleDefinition | None = None) -> None:
        """Add a task, or a schedule of an existing task, or both: all of it or nothing."""

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
    @lists_options(TaskSettings, described_by=TaskOptions)
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
        """Make a function a task: `@app.task` or `@app.task(queue="mail")`. `TaskOptions` describes the options.

        The function is a coroutine function, which runs on the worker's event loop, or a plain function, which runs in
        a thread. A partial or an object with `__call__` is also accepted. A task of a router can be enqueued once an
        app includes the router.

        `name`: the task's name, `module.function` by default; under a router's prefix, prefix and function name.

        `version`: the version of the task's arguments, which each job carries. Raise it when the arguments of older
        jobs no longer fit, and register `task.migrate` steps that upgrade them. Jobs of a newer version than the
        worker's are left to newer workers. `since`: the oldest supported version; older jobs fail as *undecodable*.

        `collect`: each call brings one item; the calls are collected into one job, whose function gets the list.

        Raises:
            UsageError: an option is unknown or invalid, the name is taken, or the function cannot be a task: it is not
                callable, is a class, a task or a method, yields, or is defined where no other process gets it; or it
                has a parameter or a result of a type that cannot be decoded.
        """
        declaration = definition(name, options, version, since, prefix=self._name_prefix, collect=collect)

        def make(function: object) -> Task[..., Any]:
            return self._added(declaration.define(function))

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
    @lists_options(TaskSettings, described_by=TaskOptions)
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
        """Declare a task whose handler is in another app, by a function without a body.

        The task is enqueued, awaited and typed like any other. A worker of this app does not run its jobs: it serves
        the task's queue only if it is configured to, and puts the task's jobs back for other workers. The app with the
        handler includes the same declaration, with its router, and implements it: `@app.implement(declared)`. With
        `collect` the function takes a list, and each call brings one item.

        Raises:
            UsageError: see `task`.
        """
        declaration = definition(name, options, version, since, prefix=self._name_prefix, collect=collect)

        def make(function: object) -> Task[..., Any]:
            return self._added(declaration.define(function, declared=True))

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
        """Make a function the handler of a declared task, with the declared name, options and version.

        `middleware`: wraps each run, instead of the middleware of the declaration.

        Raises:
            UsageError: `declared` is not a declared task. The decorator raises it if the task is not declared in this
                app or has an implementation already, if the function cannot be a task, or if its signature does not
                match the declared one.
        """
        check_declared(declared)
        own = TaskOptions(middleware=middleware)

        def make(function: object) -> Any:
            return self._added(implementation(function, declared, own))

        return make

    def cron(
        self,
        pattern: str,
        *,
        tz: str = "UTC",
        missed: MissedTicks = "latest",
        overlap: Overlap = "skip",
        grace: Duration | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        immediately: bool = False,
        name: str | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[TaskSettings],
    ) -> ScheduleDecorator:
        """Enqueue a task on a cron pattern in a time zone: `@app.cron("0 4 * * *", tz="Europe/Vienna")`.

        On a function, the decorator makes it a task with these options. On a task, it adds a schedule; a task may have
        several. `name`: the schedule's name, by default the task's. `args` and `kwargs`: the arguments of each job.

        `missed`: what to do with ticks that are late by more than `grace`: "skip", "latest", "all" or `All(max=36)`.
        `grace`: 10 s by default, or longer if the app's timing needs longer to replace a dead leader.
        `overlap`: what to do with a tick while a job of an earlier tick is unfinished: "skip", "queue_one" (one job may
        wait in addition to those that run) or "allow".
        `limit`: after this many runs the schedule has no more ticks. `start`, `end`: aware datetimes; no tick lies
        before the one or after the other. `immediately`: the first run is at once when the schedule is created.

        A worker or reaper of this app stores the schedule when it starts. A stored schedule keeps its last tick, its
        pause and its history. Removing it from the code does not remove it from the storage: call
        `app.schedules.remove`.

        Raises:
            UsageError: an option is invalid, the arguments do not fit the function, or the name is taken.
        """
        return self._scheduling(
            options,
            name,
            args,
            kwargs,
            cron=pattern,
            tz=tz,
            missed=missed,
            overlap=overlap,
            grace=grace,
            limit=limit,
            start=start,
            end=end,
            immediately=immediately,
        )

    def every(
        self,
        interval: Duration,
        *,
        missed: MissedTicks = "latest",
        overlap: Overlap = "skip",
        grace: Duration | None = None,
        limit: int | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        immediately: bool = False,
        name: str | None = None,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        **options: Unpack[TaskSettings],
    ) -> ScheduleDecorator:
        """Enqueue a task at a fixed interval: `@app.every("30s")`.

        The ticks are at whole multiples of the interval since 1970 UTC, so they do not drift, and a restart does not
        shift them. All other arguments are as for `cron`.

        Raises:
            UsageError: an option is invalid, the arguments do not fit the function, or the name is taken.
        """
        return self._scheduling(
            options,
            name,
            args,
            kwargs,
            every=interval,
            missed=missed,
            overlap=overlap,
            grace=grace,
            limit=limit,
            start=start,
            end=end,
            immediately=immediately,
        )

    def _added(self, new: TaskDefinition) -> Task[..., Any]:
        self._check_reachable(new)
        self._add(new)
        return new.task

    def _check_reachable(self, new: TaskDefinition) -> None:
        if self._serves_others and not isinstance(new.task, DeclaredTask):
            refuse_unreachable(new.task.function, self)

    def _scheduling(
        self,
        options: TaskSettings,
        name: str | None,
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        **when: Any,
    ) -> ScheduleDecorator:
        only_options(options, ("name", "args", "kwargs", *when))
        arguments, settings = several(args, field="args"), TaskOptions(**options)
        schedule_name = None if name is None else named(name, field="name")

        def declare(function: Any) -> Any:
            new = None
            if not isinstance(function, Task):
                new = TaskDeclaration(None, settings, PayloadVersions(), self._name_prefix).define(function)
            elif options:
                raise UsageError(f"{function!r} has its options already; give {next(iter(options))} to @app.task")
            if new is not None:
                self._check_reachable(new)
            task = cast("Task[..., Any]", function) if new is None else new.task
            self._add(new, ScheduleDefinition(task, schedule_name, arguments, kwargs or {}, when))
            return task

        return declare


def _plain_function(function: object) -> Callable[..., Any]:
    if isinstance(function, Task):
        raise UsageError(f"{function!r} is a task already; give its .function, with another name=")
    return runnable(function)


def _kind(
    function: Callable[..., Any], collect: Collect | None = None, *, declared: bool = False
) -> type[Task[..., Any]]:
    if declared:
        return DeclaredTask[..., Any] if collect is None else cast("type[Task[..., Any]]", DeclaredCollectTask)
    if collect is not None:
        return collecting_class(function)
    return AsyncTask[..., Any] if is_async(function) else PlainTask[..., Any]


def full_name(name: str | None, function: Callable[..., Any], prefix: str) -> str:
    """Return the task's full name: the prefix and its given name, else a name made from its function."""
    if name is not None:
        return prefix + name
    own = name_of(function)
    return prefix + own.rpartition(".")[2] if prefix else own
